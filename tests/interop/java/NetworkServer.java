// SPDX-License-Identifier: Apache-2.0

import com.hedera.hapi.block.internal.BlockBytes;
import com.hedera.hapi.block.internal.BlockItemSetBytes;
import com.hedera.hapi.block.internal.PublishStreamRequestBytes;
import com.hedera.hapi.block.stream.BlockItem;
import com.hedera.pbj.grpc.helidon.PbjRouting;
import com.hedera.pbj.grpc.helidon.config.PbjConfig;
import com.hedera.pbj.runtime.Codec;
import com.hedera.pbj.runtime.grpc.GrpcException;
import com.hedera.pbj.runtime.grpc.GrpcStatus;
import com.hedera.pbj.runtime.grpc.Pipeline;
import com.hedera.pbj.runtime.grpc.Pipelines;
import com.hedera.pbj.runtime.grpc.ServiceInterface;
import com.hedera.pbj.runtime.io.buffer.Bytes;
import io.helidon.common.tls.Tls;
import io.helidon.webserver.WebServer;
import io.helidon.webserver.WebServerConfig;
import io.helidon.webserver.http2.Http2Config;
import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.Flow;
import java.util.stream.Stream;
import java.util.zip.GZIPInputStream;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import org.hiero.block.api.BlockAccessServiceInterface;
import org.hiero.block.api.BlockEnd;
import org.hiero.block.api.BlockNodeServiceInterface;
import org.hiero.block.api.BlockRequest;
import org.hiero.block.api.BlockResponse;
import org.hiero.block.api.BlockStreamPublishServiceInterface;
import org.hiero.block.api.BlockStreamSubscribeServiceInterface;
import org.hiero.block.api.PublishStreamResponse;
import org.hiero.block.api.PublishStreamResponse.BehindPublisher;
import org.hiero.block.api.PublishStreamResponse.BlockAcknowledgement;
import org.hiero.block.api.PublishStreamResponse.EndOfStream;
import org.hiero.block.api.ServerStatusRequest;
import org.hiero.block.api.ServerStatusResponse;
import org.hiero.block.api.SubscribeStreamRequest;
import org.hiero.block.api.SubscribeStreamResponse;

/**
 * A small block node on the network's own transport, PBJ over Helidon, set up as the network's block node is.
 *
 * <p>It serves serverStatus, getBlock, publishBlockStream and subscribeBlockStream. It keeps blocks as files of one folder,
 * believes every block that follows its last, and acknowledges it at end_of_block. Usage:
 *
 * <pre>
 * NetworkServer FOLDER [--port N] [--cert FILE --key FILE]     (key: PKCS 8 in PEM)
 * </pre>
 *
 * <p>It prints {@code LISTENING PORT} when it listens and one line for each call and each block.
 */
public final class NetworkServer {
    private static final int MAX_MESSAGE_BYTES = 131_072_000;
    private static final int SET_BYTES = 1_000_000;
    private static final long NONE = -1;

    private final Path folder;
    private final ConcurrentSkipListMap<Long, Path> files = new ConcurrentSkipListMap<>();

    private NetworkServer(final Path folder) throws IOException {
        this.folder = Files.createDirectories(folder);
        try (Stream<Path> found = Files.list(folder)) {
            for (final Path path : found.toList()) {
                final String name = path.getFileName().toString();
                if (name.matches("\\d+\\.blk(\\.gz)?")) {
                    files.put(Long.parseLong(name.substring(0, name.indexOf('.'))), path);
                }
            }
        }
    }

    /** Serve until the process is ended. */
    public static void main(final String[] arguments) throws Exception {
        final Map<String, String> options = new TreeMap<>();
        for (int i = 1; i < arguments.length; i += 2) {
            options.put(arguments[i].substring(2), arguments[i + 1]);
        }
        final NetworkServer node = new NetworkServer(Path.of(arguments[0]));
        final WebServerConfig.Builder builder = WebServer.builder()
                .host("127.0.0.1")
                .port(Integer.parseInt(options.getOrDefault("port", "0")))
                // The defaults of the network's block node.
                .addProtocol(Http2Config.builder()
                        .flowControlTimeout(Duration.ofMillis(500))
                        .initialWindowSize(8_388_608)
                        .maxConcurrentStreams(8)
                        .maxEmptyFrames(10)
                        .maxFrameSize(8_388_608)
                        .maxHeaderListSize(8192)
                        .maxRapidResets(50)
                        .rapidResetCheckPeriod(Duration.ofMillis(10_000))
                        .build())
                .addProtocol(PbjConfig.builder().name("pbj").maxMessageSizeBytes(MAX_MESSAGE_BYTES).build())
                .addRouting(PbjRouting.builder()
                        .service(node.new Status())
                        .service(node.new Access())
                        .service(node.new Publish())
                        .service(node.new Subscribe()));
        if (options.containsKey("cert")) {
            builder.tls(tls(Path.of(options.get("cert")), Path.of(options.get("key"))));
        }
        final WebServer server = builder.build().start();
        say("LISTENING " + server.port());
    }

    private static Tls tls(final Path certificate, final Path key) throws Exception {
        final List<Certificate> chain = new ArrayList<>();
        try (InputStream in = Files.newInputStream(certificate)) {
            chain.addAll(CertificateFactory.getInstance("X.509").generateCertificates(in));
        }
        final String body = Files.readString(key).replaceAll("-----[A-Z ]+-----|\\s", "");
        final PKCS8EncodedKeySpec encoded = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(body));
        final PrivateKey secret =
                KeyFactory.getInstance(chain.getFirst().getPublicKey().getAlgorithm()).generatePrivate(encoded);
        final KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        store.setKeyEntry("server", secret, new char[0], chain.toArray(new Certificate[0]));
        final KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, new char[0]);
        final SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), null, null);
        return Tls.builder().enabled(true).sslContext(context).addApplicationProtocol("h2").build();
    }

    private long first() {
        return files.isEmpty() ? NONE : files.firstKey();
    }

    private long last() {
        return files.isEmpty() ? NONE : files.lastKey();
    }

    // Services -----------------------------------------------------------------------------------------------------

    private final class Status implements BlockNodeServiceInterface {
        @Override
        public ServerStatusResponse serverStatus(final ServerStatusRequest request) {
            say("CALL serverStatus");
            return new ServerStatusResponse(first(), last(), false);
        }
    }

    private final class Access implements BlockAccessServiceInterface {
        /** The generated `open` would answer with a parsed block; it goes out as the bytes of its file. */
        @Override
        public Pipeline<? super Bytes> open(
                final Method method, final RequestOptions request, final Pipeline<? super Bytes> replies) {
            return Pipelines.<BlockRequest, Bytes>unary()
                    .mapRequest(BlockRequest.PROTOBUF::parse)
                    .method(this::answer)
                    .mapResponse(bytes -> bytes)
                    .respondTo(replies)
                    .build();
        }

        private Bytes answer(final BlockRequest asked) throws IOException {
            final long number = asked.hasBlockNumber() ? asked.blockNumber() : last();
            say("CALL getBlock " + text(number));
            final Path path = files.get(number);
            if (path == null) {
                final BlockResponse none = BlockResponse.newBuilder().status(BlockResponse.Code.NOT_AVAILABLE).build();
                return BlockResponse.PROTOBUF.toBytes(none);
            }
            final BlockResponse found = BlockResponse.newBuilder().status(BlockResponse.Code.SUCCESS).build();
            return Bytes.merge(BlockResponse.PROTOBUF.toBytes(found), field(2, unpacked(path)));
        }
    }

    private final class Publish implements BlockStreamPublishServiceInterface {
        /** The generated `open` would parse items; items are kept as the bytes that came. */
        @Override
        public Pipeline<? super Bytes> open(
                final Method method, final RequestOptions request, final Pipeline<? super Bytes> replies) {
            say("CALL publishBlockStream " + request.metadata().getOrDefault("hiero-correlation-id", "-"));
            return Pipelines.<PublishStreamRequestBytes, PublishStreamResponse>bidiStreaming()
                    .mapRequest(bytes -> PublishStreamRequestBytes.PROTOBUF.parse(
                            bytes.toReadableSequentialData(), false, false, Codec.DEFAULT_MAX_DEPTH, MAX_MESSAGE_BYTES))
                    .method(Publisher::new)
                    .mapResponse(PublishStreamResponse.PROTOBUF::toBytes)
                    .respondTo(replies)
                    .build();
        }
    }

    /** One publisher's stream. */
    private final class Publisher implements Pipeline<PublishStreamRequestBytes> {
        private final Pipeline<? super PublishStreamResponse> replies;
        private final List<Bytes> items = new ArrayList<>();
        private boolean wanted; // the block under way is the one that follows the last

        private Publisher(final Pipeline<? super PublishStreamResponse> replies) {
            this.replies = replies;
        }

        @Override
        public void onNext(final PublishStreamRequestBytes request) {
            try {
                if (request.hasBlockItems()) {
                    hear(request.blockItems().blockItems());
                } else if (request.hasEndOfBlock()) {
                    end(request.endOfBlock().blockNumber());
                } else {
                    say("ENDSTREAM " + request.endStream().endCode() + " "
                            + text(request.endStream().earliestBlockNumber()) + " "
                            + text(request.endStream().latestBlockNumber()));
                }
            } catch (final Exception error) {
                throw new GrpcException(GrpcStatus.INTERNAL, error);
            }
        }

        private void hear(final List<Bytes> set) throws Exception {
            if (items.isEmpty()) {
                final BlockItem header = BlockItem.PROTOBUF.parse(set.getFirst().toReadableSequentialData());
                if (!header.hasBlockHeader()) {
                    return; // items of a block that was refused
                }
                final long number = header.blockHeader().number();
                wanted = files.isEmpty() || number == last() + 1;
                if (!wanted && number > last()) {
                    answer(PublishStreamResponse.newBuilder().nodeBehindPublisher(new BehindPublisher(last())).build());
                } else if (!wanted) {
                    final EndOfStream end = new EndOfStream(EndOfStream.Code.DUPLICATE_BLOCK, last());
                    answer(PublishStreamResponse.newBuilder().endStream(end).build());
                    replies.onComplete();
                }
            }
            if (wanted) {
                items.addAll(set);
            }
        }

        private void end(final long number) throws IOException {
            if (!wanted) {
                return;
            }
            final Path path = folder.resolve(String.format("%019d.blk", number));
            Files.write(path, BlockBytes.PROTOBUF.toBytes(new BlockBytes(items)).toByteArray());
            files.put(number, path);
            items.clear();
            wanted = false;
            say("STORED " + number);
            answer(PublishStreamResponse.newBuilder().acknowledgement(new BlockAcknowledgement(number)).build());
        }

        private void answer(final PublishStreamResponse response) {
            replies.onNext(response);
        }

        @Override
        public void onError(final Throwable error) {
            say("PUBLISHER ERROR " + error);
        }

        @Override
        public void onComplete() {
            say("PUBLISHER GONE");
        }

        @Override
        public void clientEndStreamReceived() {
            replies.onComplete();
        }

        @Override
        public void onSubscribe(final Flow.Subscription subscription) {
            subscription.request(Long.MAX_VALUE);
        }
    }

    private final class Subscribe implements BlockStreamSubscribeServiceInterface {
        /** The generated `open` would take items that are parsed; they go out as the bytes of the files. */
        @Override
        public Pipeline<? super Bytes> open(
                final Method method, final RequestOptions request, final Pipeline<? super Bytes> replies) {
            return Pipelines.<SubscribeStreamRequest, Bytes>serverStreaming()
                    .mapRequest(SubscribeStreamRequest.PROTOBUF::parse)
                    // On a thread of its own: this one reads the connection's frames, so also its windows.
                    .method((asked, answers) -> Thread.ofVirtual().start(() -> serve(asked, answers)))
                    .mapResponse(bytes -> bytes)
                    .respondTo(replies)
                    .build();
        }

        private void serve(final SubscribeStreamRequest asked, final Pipeline<? super Bytes> answers) {
            long number = asked.startBlockNumber();
            final long end = asked.endBlockNumber();
            say("CALL subscribeBlockStream " + text(number) + " " + text(end));
            if (number == NONE) {
                number = first() == NONE ? 0 : first();
            }
            SubscribeStreamResponse.Code status = SubscribeStreamResponse.Code.SUCCESS;
            try {
                while (end == NONE || Long.compareUnsigned(number, end) <= 0) {
                    final Path path = files.get(number);
                    if (path == null && number <= last()) {
                        status = SubscribeStreamResponse.Code.NOT_AVAILABLE;
                        break;
                    }
                    if (path == null) {
                        Thread.sleep(50); // live: the next block is still to come
                        continue;
                    }
                    send(number++, read(path), answers);
                }
                answers.onNext(SubscribeStreamResponse.PROTOBUF.toBytes(
                        SubscribeStreamResponse.newBuilder().status(status).build()));
                answers.onComplete();
            } catch (final Exception error) {
                say("SUBSCRIBER GONE " + error);
            }
        }

        private void send(final long number, final List<Bytes> items, final Pipeline<? super Bytes> answers) {
            int from = 0;
            long size = 0;
            for (int i = 0; i < items.size(); i++) {
                if (i > from && size + items.get(i).length() > SET_BYTES) {
                    answers.onNext(itemSet(items.subList(from, i)));
                    from = i;
                    size = 0;
                }
                size += items.get(i).length();
            }
            answers.onNext(itemSet(items.subList(from, items.size())));
            answers.onNext(SubscribeStreamResponse.PROTOBUF.toBytes(
                    SubscribeStreamResponse.newBuilder().endOfBlock(new BlockEnd(number)).build()));
        }

        /** SubscribeStreamResponse.block_items. */
        private static Bytes itemSet(final List<Bytes> items) {
            return field(2, BlockItemSetBytes.PROTOBUF.toBytes(new BlockItemSetBytes(items)).toByteArray());
        }
    }

    /** A protobuf field with a length. */
    private static Bytes field(final int number, final byte[] content) {
        final ByteArrayOutputStream message = new ByteArrayOutputStream(content.length + 6);
        message.write(number << 3 | 2);
        int length = content.length;
        for (; length > 0x7f; length >>>= 7) {
            message.write(length & 0x7f | 0x80);
        }
        message.write(length);
        message.writeBytes(content);
        return Bytes.wrap(message.toByteArray());
    }

    private static List<Bytes> read(final Path path) throws Exception {
        return BlockBytes.PROTOBUF
                .parse(
                        Bytes.wrap(unpacked(path)).toReadableSequentialData(),
                        false,
                        false,
                        Codec.DEFAULT_MAX_DEPTH,
                        2 * MAX_MESSAGE_BYTES)
                .items();
    }

    private static byte[] unpacked(final Path path) throws IOException {
        try (InputStream file = new BufferedInputStream(Files.newInputStream(path));
                InputStream in = path.toString().endsWith(".gz") ? new GZIPInputStream(file) : file) {
            return in.readAllBytes();
        }
    }

    private static String text(final long number) {
        return number == NONE ? "none" : Long.toUnsignedString(number);
    }

    private static synchronized void say(final String line) {
        System.out.println(line);
        System.out.flush();
    }
}
