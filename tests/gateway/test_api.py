"""Tests of `gateway.api`: the stubs match `proto/`, and `proto/` matches the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import Message

from sluice.gateway.api import __main__ as generator
from sluice.gateway.api import (
    address_book_pb2,
    block_items_pb2,
    block_pb2,
    node_pb2,
    publish_pb2,
    subscribe_pb2,
)

FOLDER = Path(generator.__file__).parent
BY_HAND = {"README.md", "__init__.py", "__main__.py"}
U64_MAX = (1 << 64) - 1


def test_the_committed_stubs_are_those_of_the_proto_files(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="needs the extra dev")
    generated = generator.generate(tmp_path)
    committed = {path.name for path in FOLDER.iterdir() if path.is_file()} - BY_HAND
    assert {path.name for path in generated} == committed
    stale = [path.name for path in generated if path.read_bytes() != (FOLDER / path.name).read_bytes()]
    assert stale == [], "run: make proto"


def test_anybody_can_make_stubs_of_the_proto_files(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs the extra dev")
    names = sorted(path.name for path in generator.PROTO_DIR.glob("*.proto"))
    assert protoc.main(["protoc", f"-I{generator.PROTO_DIR}", f"--python_out={tmp_path}", *names]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {name.replace(".proto", "_pb2.py") for name in names}


Request = publish_pb2.PublishStreamRequest
Response = publish_pb2.PublishStreamResponse
Subscription = subscribe_pb2.SubscribeStreamResponse

NODES = address_book_pb2.NodeAddressBook(
    nodeAddress=[
        address_book_pb2.NodeAddress(
            RSA_PubKey="30",
            nodeId=5,
            nodeAccountId=address_book_pb2.AccountID(shardNum=1, realmNum=2, accountNum=3),
            nodeCertHash=b"h",
            serviceEndpoint=[
                address_book_pb2.ServiceEndpoint(ipAddressV4=b"\x7f\0\0\1", port=80, domain_name="d")
            ],
            description="n",
        )
    ]
)
NODES_BYTES = "0a21 22023330 2805 3206080110021803 3a0168 420b 0a047f000001 1050 1a0164 4a016e"

# Each message with all fields set, and its bytes, from the field numbers of docs/spec/wire.md section 2.
WIRE: dict[str, tuple[Message, str]] = {
    "BlockItemSet": (
        block_items_pb2.BlockItemSet(block_items=[b"\x0a\x01h", b"\x22\x00"]),
        "0a030a0168 0a022200",
    ),
    "BlockEnd": (block_items_pb2.BlockEnd(block_number=300), "08ac02"),
    "PublishStreamRequest.block_items": (
        Request(block_items=block_items_pb2.BlockItemSet(block_items=[b"\x22\x00"])),
        "0a04 0a022200",
    ),
    "PublishStreamRequest.end_stream": (
        Request(
            end_stream=Request.EndStream(
                end_code=Request.EndStream.TOO_FAR_BEHIND, earliest_block_number=1, latest_block_number=2
            )
        ),
        "1206 0804 1001 1802",
    ),
    "PublishStreamRequest.end_of_block": (
        Request(end_of_block=block_items_pb2.BlockEnd(block_number=5)),
        "1a02 0805",
    ),
    "PublishStreamResponse.acknowledgement": (
        Response(acknowledgement=Response.BlockAcknowledgement(block_number=5)),
        "0a02 0805",
    ),
    "PublishStreamResponse.end_stream": (
        Response(
            end_stream=Response.EndOfStream(
                status=Response.EndOfStream.PERSISTENCE_FAILED,
                block_number=U64_MAX,
                proximate_block_number=3,
            )
        ),
        "120f 0807 10ffffffffffffffffff01 1803",
    ),
    "PublishStreamResponse.skip_block": (
        Response(skip_block=Response.SkipBlock(block_number=5)),
        "1a02 0805",
    ),
    "PublishStreamResponse.resend_block": (
        Response(resend_block=Response.ResendBlock(block_number=5)),
        "2202 0805",
    ),
    "PublishStreamResponse.node_behind_publisher": (
        Response(node_behind_publisher=Response.BehindPublisher(block_number=5)),
        "2a02 0805",
    ),
    "SubscribeStreamRequest": (
        subscribe_pb2.SubscribeStreamRequest(start_block_number=1, end_block_number=2),
        "0801 1002",
    ),
    "SubscribeStreamResponse.status": (Subscription(status=Subscription.NOT_AVAILABLE), "0806"),
    "SubscribeStreamResponse.block_items": (
        Subscription(block_items=block_items_pb2.BlockItemSet(block_items=[b"\x22\x00"])),
        "1204 0a022200",
    ),
    "SubscribeStreamResponse.end_of_block": (
        Subscription(end_of_block=block_items_pb2.BlockEnd(block_number=5)),
        "1a02 0805",
    ),
    "ServerStatusRequest": (node_pb2.ServerStatusRequest(), ""),
    "ServerStatusResponse": (
        node_pb2.ServerStatusResponse(
            first_available_block=1, last_available_block=2, only_latest_state=True, next_expected_block=3
        ),
        "0801 1002 1801 2003",
    ),
    "ServerStatusDetailResponse": (
        node_pb2.ServerStatusDetailResponse(
            version_information=node_pb2.BlockNodeVersions(
                stream_proto_version=block_pb2.SemanticVersion(minor=78),
                block_node_version=block_pb2.SemanticVersion(major=1),
            ),
            available_ranges=[node_pb2.BlockRange(range_start=1, range_end=2)],
            stored_ranges=[node_pb2.BlockRange(range_end=9)],
        ),
        "0a08 0a02104e 12020801 1204 0801 1002 2a02 1009",
    ),
    "ServerStatusDetailResponse.plugins": (
        node_pb2.ServerStatusDetailResponse(
            version_information=node_pb2.BlockNodeVersions(
                installed_plugin_versions=[
                    node_pb2.BlockNodeVersions.PluginVersion(
                        plugin_id="p",
                        plugin_software_version=block_pb2.SemanticVersion(patch=3),
                        plugin_feature_names=["a", "b"],
                    )
                ]
            ),
        ),
        "0a0f 1a0d 0a0170 12021803 1a0161 1a0162",
    ),
    "ServerStatusDetailResponse.tss_data": (
        node_pb2.ServerStatusDetailResponse(
            tss_data=node_pb2.TssData(
                ledger_id=b"i",
                wraps_verification_key=b"w",
                current_roster=node_pb2.TssRoster(
                    roster_entries=[node_pb2.RosterEntry(node_id=1, weight=2, schnorr_public_key=b"k")]
                ),
                valid_from_block=4,
            ),
        ),
        "1a13 0a0169 120177 1a09 0a07 0801 1002 1a016b 2004",
    ),
    "ServerStatusDetailResponse.address_books": (
        node_pb2.ServerStatusDetailResponse(
            node_address_book=NODES,
            ranged_address_book_history=node_pb2.RangedAddressBookHistory(
                address_books=[
                    node_pb2.RangedNodeAddressBook(address_book=NODES, start_block=1, end_block=U64_MAX)
                ]
            ),
        ),
        f"2223 {NODES_BYTES} 3234 0a32 0a23 {NODES_BYTES} 1001 18ffffffffffffffffff01",
    ),
    "BlockRequest.block_number": (node_pb2.BlockRequest(block_number=0), "0800"),
    "BlockRequest.retrieve_latest": (node_pb2.BlockRequest(retrieve_latest=True), "1001"),
    "BlockResponse": (
        node_pb2.BlockResponse(
            status=node_pb2.BlockResponse.SUCCESS, block=block_pb2.Block(items=[b"\x22\x00"])
        ),
        "0801 1204 0a022200",
    ),
    "BlockHeader": (
        block_pb2.BlockHeader(
            hapi_proto_version=block_pb2.SemanticVersion(major=1, minor=2, patch=3, pre="p", build="b"),
            software_version=block_pb2.SemanticVersion(minor=78),
            number=5,
            block_timestamp=block_pb2.Timestamp(seconds=-1, nanos=7),
            hash_algorithm=block_pb2.SHA2_384,
        ),
        "0a0c 0801 1002 1803 220170 2a0162  1202 104e  1805  220d 08ffffffffffffffffff01 1007",
    ),
    "BlockFooter": (
        block_pb2.BlockFooter(
            previous_block_root_hash=b"a",
            root_hash_of_all_block_hashes_tree=b"b",
            start_of_block_state_root_hash=b"c",
        ),
        "0a0161 120162 1a0163",
    ),
    "BlockProof.signed_block_proof": (
        block_pb2.BlockProof(block=5, signed_block_proof=block_pb2.SignedBlockProof(block_signature=b"s")),
        "0805 1203 0a0173",
    ),
    "BlockProof.block_state_proof": (block_pb2.BlockProof(block=5, block_state_proof=b"s"), "0805 1a0173"),
    "BlockProof.signed_record_file_proof": (
        block_pb2.BlockProof(block=5, signed_record_file_proof=b"s"),
        "0805 220173",
    ),
    "BlockItem.block_header": (
        block_pb2.BlockItem(block_header=block_pb2.BlockHeader(number=5)),
        "0a02 1805",
    ),
    "BlockItem.block_proof": (block_pb2.BlockItem(block_proof=block_pb2.BlockProof(block=5)), "4a02 0805"),
    "BlockItem.block_footer": (block_pb2.BlockItem(block_footer=block_pb2.BlockFooter()), "6200"),
}


@pytest.mark.parametrize(("message", "spelled_out"), WIRE.values(), ids=WIRE)
def test_the_bytes_on_the_wire(message: Message, spelled_out: str) -> None:
    encoded = bytes.fromhex(spelled_out.replace(" ", ""))
    assert message.SerializeToString(deterministic=True) == encoded
    assert type(message).FromString(encoded) == message


def test_every_message_has_its_bytes_checked() -> None:
    """Messages that are only parts of others are tested with them."""
    parts = {
        "Block",
        "BlockItem",
        "SignedBlockProof",
        "StreamEntry",
        "SemanticVersion",
        "Timestamp",
        "BlockNodeVersions",
        "BlockRange",
        "TssData",
        "TssRoster",
        "RosterEntry",
        "RangedAddressBookHistory",
        "RangedNodeAddressBook",
        "NodeAddressBook",
        "NodeAddress",
        "AccountID",
        "ServiceEndpoint",
    }
    modules = (address_book_pb2, block_items_pb2, block_pb2, node_pb2, publish_pb2, subscribe_pb2)
    messages = {name for module in modules for name in module.DESCRIPTOR.message_types_by_name}
    assert messages - parts == {name.partition(".")[0] for name in WIRE} - parts


ENUMS = {
    "org.hiero.block.api.PublishStreamRequest.EndStream.Code": "UNKNOWN RESET TIMEOUT ERROR TOO_FAR_BEHIND",
    "org.hiero.block.api.PublishStreamResponse.EndOfStream.Code": (
        "UNKNOWN SUCCESS INVALID_REQUEST ERROR TIMEOUT DUPLICATE_BLOCK BAD_BLOCK_PROOF PERSISTENCE_FAILED"
    ),
    "org.hiero.block.api.SubscribeStreamResponse.Code": (
        "UNKNOWN SUCCESS INVALID_REQUEST ERROR "
        "INVALID_START_BLOCK_NUMBER INVALID_END_BLOCK_NUMBER NOT_AVAILABLE"
    ),
    "org.hiero.block.api.BlockResponse.Code": "UNKNOWN SUCCESS INVALID_REQUEST ERROR NOT_FOUND NOT_AVAILABLE",
    "com.hedera.hapi.block.stream.BlockHashAlgorithm": "SHA2_384",
}


@pytest.mark.parametrize(("name", "values"), ENUMS.items())
def test_enum_values_count_from_0(name: str, values: str) -> None:
    numbers = {
        value.name: value.number for value in descriptor_pool.Default().FindEnumTypeByName(name).values
    }
    assert numbers == {value: number for number, value in enumerate(values.split())}


@pytest.mark.parametrize(
    ("method", "request_name", "response_name", "streams"),
    [
        (
            "BlockStreamPublishService.publishBlockStream",
            "PublishStreamRequest",
            "PublishStreamResponse",
            "both",
        ),
        (
            "BlockStreamSubscribeService.subscribeBlockStream",
            "SubscribeStreamRequest",
            "SubscribeStreamResponse",
            "response",
        ),
        ("BlockNodeService.serverStatus", "ServerStatusRequest", "ServerStatusResponse", "none"),
        ("BlockNodeService.serverStatusDetail", "ServerStatusRequest", "ServerStatusDetailResponse", "none"),
        ("BlockAccessService.getBlock", "BlockRequest", "BlockResponse", "none"),
    ],
)
def test_services_have_the_names_of_the_wire(
    method: str, request_name: str, response_name: str, streams: str
) -> None:
    package = "org.hiero.block.api"
    found = descriptor_pool.Default().FindMethodByName(f"{package}.{method}")
    assert found.input_type.full_name == f"{package}.{request_name}"
    assert found.output_type.full_name == f"{package}.{response_name}"
    assert found.client_streaming == (streams == "both")
    assert found.server_streaming == (streams != "none")
