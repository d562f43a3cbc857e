"""Write the stubs of `proto/` into a folder: `python -m sluice.gateway.api [OUT_DIR]`, by default into this one's place.

Needs the extra `dev` (grpcio-tools and mypy-protobuf, pinned, because the output names their versions).
"""

import shutil
import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).resolve().parents[2]
PROTO_DIR = REPOSITORY / "proto"
# The files import each other by name, so that `protoc -I proto publish.proto` makes stubs in any language. Ours
# are made from copies that import sluice/gateway/api/NAME.proto, so that the stubs import each other as sluice.gateway.api.
IMPORT_PREFIX = "sluice/gateway/api"


def generate(out_dir: Path) -> list[Path]:
    """Write the stubs of every file in `proto/` below `out_dir` and return their paths.

    Raises:
        SystemExit: protoc failed; it has printed why.
    """
    from grpc_tools import protoc

    plugin_dir = Path(sys.executable).parent
    names = sorted(path.name for path in PROTO_DIR.glob("*.proto"))
    with_service = [name for name in names if "\nservice " in (PROTO_DIR / name).read_text()]

    def run(copies: str, outputs: list[str], proto_names: list[str]) -> None:
        includes = [f"-I{IMPORT_PREFIX}={copies}", f"-I{files('grpc_tools') / '_proto'}"]
        status = protoc.main(
            ["protoc", *includes, *outputs, *(f"{IMPORT_PREFIX}/{name}" for name in proto_names)]
        )
        if status != 0:
            raise SystemExit(f"protoc ended with status {status}")

    plugins = [
        f"--plugin=protoc-gen-{name}={plugin_dir / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")
    ]
    with TemporaryDirectory() as copies:
        for name in names:
            text = (PROTO_DIR / name).read_text().replace('\nimport "', f'\nimport "{IMPORT_PREFIX}/')
            (Path(copies) / name).write_text(text)
        run(copies, [f"--python_out={out_dir}", f"--mypy_out=quiet:{out_dir}", *plugins], names)
        run(
            copies,
            [f"--grpc_python_out={out_dir}", f"--mypy_grpc_out=quiet:{out_dir}", *plugins],
            with_service,
        )
    return sorted((out_dir / IMPORT_PREFIX).glob("*_pb2*"))


def main() -> None:
    out_dir = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY
    if shutil.which("protoc-gen-mypy", path=str(Path(sys.executable).parent)) is None:
        raise SystemExit("mypy-protobuf is missing beside this interpreter: pip install -e '.[dev]'")
    for path in generate(out_dir):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
