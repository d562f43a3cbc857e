// SPDX-License-Identifier: Apache-2.0

import com.hedera.hapi.block.internal.BlockBytes;
import com.hedera.hapi.block.internal.BlockItemSetBytes;
import com.hedera.hapi.block.internal.EndStreamBytes;
import com.hedera.hapi.block.internal.PublishStreamRequestBytes;
import com.hedera.pbj.grpc.client.helidon.PbjGrpcClient;
import com.hedera.pbj.grpc.client.helidon.PbjGrpcClientConfig;
import com.hedera.pbj.runtime.Codec;
import com.hedera.pbj.runtime.ParseException;
import com.hedera.pbj.runtime.grpc.GrpcCall;
import com.hedera.pbj.runtime.grpc.GrpcCompression;
import com.hedera.pbj.runtime.grpc.GrpcException;
import com.hedera.pbj.runtime.grpc.Pipeline;
import com.hedera.pbj.runtime.grpc.ServiceInterface;
import com.hedera.pbj.runtime.io.ReadableSequentialData;
import com.hedera.pbj.runtime.io.WritableSequentialData;
import com.hedera.pbj.runtime.io.buffer.Bytes;
import io.helidon.common.tls.Tls;
import io.helidon.webclient.api.WebClient;
import io.helidon.webclient.http2.Http2ClientProtocolConfig;
import io.helidon.webclient.grpc.GrpcClientProtocolConfig;
import java.io.BufferedInputStream;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import java.util.zip.GZIPInputStream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;
import org.hiero.block.api.BlockEnd;
import org.hiero.block.api.BlockNodeServiceInterface.BlockNodeServiceClient;
import org.hiero.block.api.PublishStreamRequest.EndStream;
import org.hiero.block.api.PublishStreamResponse;
import org.hiero.block.api.ServerStatusRequest;
import org.hiero.block.api.ServerStatusResponse;
import org.hiero.block.api.SubscribeStreamRequest;
import org.hiero.block.api.SubscribeStreamResponse;

/**
 * A publisher, and a subscriber, over the transport that the network's own software uses: PBJ over Helidon.
 *
 * <p>The client is set up as a consensus node sets up its own: one HTTP/2 connection a stream, Helidon's default
 * windows and frame sizes, no {@code te} header, metadata {@code hiero-correlation-id}, requests filled up to a soft
 * limit of 2 MiB, and TLS that trusts one certificate by the hash of its DER encoding. A subscriber has the windows
 * and frames of a block node that subscribes to another.
 *
 * <p>Each answer of the server is one line on standard output. Usage:
 *
 * <pre>
 * NetworkClient status URL [options]
 * NetworkClient publish URL FOLDER [options]    every block of the folder; reconnects, resends, skips
 * NetworkClient talk URL FOLDER [options]       what standard input says, one command a line
 * NetworkClient subscribe URL FIRST LAST [options]
 *
 * --id TEXT        metadata hiero-correlation-id (default N3-STR1)
 * --pin HEX        trust the certificate with this SHA-256 or SHA-384 hash, and no other
 * --ca FILE        trust the certificates of this PEM file
 * --soft BYTES     fill requests up to this size (default 2097152)
 * --seconds N      give up after N seconds (default 50)
 * --pace MS        wait between two blocks of `publish`
 * </pre>
 *
 * <p>Commands of {@code talk}: {@code block N}, {@code items N FROM TO}, {@code end N}, {@code forged N} (its last
 * byte is changed), {@code endstream CODE EARLIEST LATEST}, {@code close}.
 */
public final class NetworkClient {
    private static final String PUBLISH = "org.hiero.block.api.BlockStreamPublishService/publishBlockStream";
    private static final String SUBSCRIBE = "org.hiero.block.api.BlockStreamSubscribeService/subscribeBlockStream";
    private static final int MAX_MESSAGE_BYTES = 131_072_000;
    private static final int BLOCK_NODE_WINDOW = 2 * 1024 * 1024; // of a block node that subscribes to another
    private static final long NONE = -1;

    private final String url;
    private final Map<String, String> options;
    private final Map<Long, Path> files = new TreeMap<>();
    private final long deadline;

    private NetworkClient(final String url, final Map<String, String> options) {
        this.url = url;
        this.options = options;
        this.deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(option("seconds", "50")));
    }

    /** Run one command; the exit status is 0 when all was done, 1 when it was not. */
    public static void main(final String[] arguments) throws Exception {
        final List<String> words = new ArrayList<>();
        final Map<String, String> options = new TreeMap<>();
        for (int i = 0; i < arguments.length; i++) {
            if (arguments[i].startsWith("--")) {
                options.put(arguments[i].substring(2), arguments[++i]);
            } else {
                words.add(arguments[i]);
            }
        }
        final NetworkClient client = new NetworkClient(words.get(1), options);
        boolean done = false;
        try {
            done = switch (words.get(0)) {
                case "status" -> client.status();
                case "publish" -> client.publish(Path.of(words.get(2)));
                case "talk" -> client.talk(Path.of(words.get(2)));
                case "subscribe" -> client.subscribe(number(words.get(2)), number(words.get(3)));
                default -> throw new IllegalArgumentException("no such command: " + words.get(0));
            };
        } catch (final Exception error) {
            say("ERROR " + describe(error));
        }
        System.exit(done ? 0 : 1); // Helidon's threads would go on
    }

    // What a consensus node does to connect ------------------------------------------------------------------------

    private PbjGrpcClient connect() throws Exception {
        return connect(Http2ClientProtocolConfig.builder().build());
    }

    private PbjGrpcClient connect(final Http2ClientProtocolConfig http2) throws Exception {
        final Tls tls = tls();
        final Duration timeout = Duration.ofSeconds(30);
        final PbjGrpcClientConfig config = new PbjGrpcClientConfig(
                timeout,
                tls,
                Optional.of(""),
                "application/grpc",
                GrpcCompression.IDENTITY,
                GrpcCompression.getDecompressorNames(),
                MAX_MESSAGE_BYTES,
                MAX_MESSAGE_BYTES + 5);
        final WebClient web = WebClient.builder()
                .baseUri(url)
                .tls(tls)
                .addProtocolConfig(http2)
                .addProtocolConfig(GrpcClientProtocolConfig.builder().build())
                .connectTimeout(timeout)
                .build();
        return new PbjGrpcClient(web, config);
    }

    private Tls tls() throws Exception {
        if (!url.startsWith("https:")) {
            return Tls.builder().enabled(false).build();
        }
        final SSLContext context = SSLContext.getInstance("TLS");
        if (options.containsKey("pin")) {
            context.init(null, new TrustManager[] {new Pinned(options.get("pin"))}, null);
            // The hash names one certificate, so the name in it does not matter.
            return Tls.builder()
                    .enabled(true)
                    .sslContext(context)
                    .endpointIdentificationAlgorithm(Tls.ENDPOINT_IDENTIFICATION_NONE)
                    .build();
        }
        final KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream in = Files.newInputStream(Path.of(options.get("ca")))) {
            int count = 0;
            for (final var certificate : CertificateFactory.getInstance("X.509").generateCertificates(in)) {
                store.setCertificateEntry("ca" + count++, certificate);
            }
        }
        final TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        context.init(null, trust.getTrustManagers(), null);
        return Tls.builder().enabled(true).sslContext(context).build();
    }

    private Map<String, String> metadata() {
        return Map.of("hiero-correlation-id", option("id", "N3-STR1"));
    }

    /** Trusts the one certificate whose DER encoding has a hash; its dates still count. */
    private static final class Pinned implements X509TrustManager {
        private final byte[] hash;

        private Pinned(final String hex) {
            hash = HexFormat.of().parseHex(hex.replace(":", "").toLowerCase());
        }

        @Override
        public void checkServerTrusted(final X509Certificate[] chain, final String kind) throws CertificateException {
            try {
                final String algorithm = hash.length == 48 ? "SHA-384" : "SHA-256";
                final byte[] got = MessageDigest.getInstance(algorithm).digest(chain[0].getEncoded());
                if (!MessageDigest.isEqual(hash, got)) {
                    throw new CertificateException("the server's certificate has the hash "
                            + HexFormat.of().formatHex(got) + ", expected " + HexFormat.of().formatHex(hash));
                }
            } catch (final java.security.NoSuchAlgorithmException error) {
                throw new CertificateException(error);
            }
            chain[0].checkValidity();
        }

        @Override
        public void checkClientTrusted(final X509Certificate[] chain, final String kind) throws CertificateException {
            throw new CertificateException("this is a client");
        }

        @Override
        public X509Certificate[] getAcceptedIssuers() {
            return new X509Certificate[0];
        }
    }

    // status -------------------------------------------------------------------------------------------------------

    private boolean status() throws Exception {
        final ServerStatusResponse status = askStatus();
        say("STATUS " + text(status.firstAvailableBlock()) + " " + text(status.lastAvailableBlock()));
        return true;
    }

    private ServerStatusResponse askStatus() throws Exception {
        final Map<String, String> metadata = metadata();
        final ServiceInterface.RequestOptions request = new ServiceInterface.RequestOptions() {
            @Override
            public Optional<String> authority() {
                return Optional.empty();
            }

            @Override
            public String contentType() {
                return ServiceInterface.RequestOptions.APPLICATION_GRPC;
            }

            @Override
            public Map<String, String> metadata() {
                return metadata;
            }
        };
        final BlockNodeServiceClient service = new BlockNodeServiceClient(connect(), request);
        try {
            return service.serverStatus(new ServerStatusRequest());
        } finally {
            service.close();
        }
    }

    // publish ------------------------------------------------------------------------------------------------------

    /** One publish stream and its answers; the answers come on a thread of Helidon. */
    private final class Publishing implements Pipeline<PublishStreamResponse>, AutoCloseable {
        private final PbjGrpcClient connection;
        private final GrpcCall<PublishStreamRequestBytes, PublishStreamResponse> call;
        private long acknowledged = NONE;
        private long target; // the block to send next
        private boolean moved; // an answer changed it
        private boolean over;

        private Publishing(final long first) throws Exception {
            target = first;
            connection = connect();
            call = connection.createCall(
                    PUBLISH,
                    PublishStreamRequestBytes.PROTOBUF,
                    PublishStreamResponse.PROTOBUF,
                    this,
                    NetworkClient.this.metadata());
        }

        @Override
        public synchronized void onNext(final PublishStreamResponse answer) {
            say(line(answer));
            if (answer.hasAcknowledgement()) {
                acknowledged = answer.acknowledgement().blockNumber();
            } else if (answer.hasSkipBlock() && answer.skipBlock().blockNumber() >= target) {
                move(answer.skipBlock().blockNumber() + 1);
            } else if (answer.hasResendBlock()) {
                move(answer.resendBlock().blockNumber());
            } else if (answer.hasNodeBehindPublisher()) {
                move(answer.nodeBehindPublisher().blockNumber() + 1);
            } else if (answer.hasEndStream()) {
                over = true;
            }
            notifyAll();
        }

        private void move(final long number) {
            target = number;
            moved = true;
        }

        @Override
        public synchronized void onError(final Throwable error) {
            say("ERROR " + describe(error));
            over = true;
            notifyAll();
        }

        @Override
        public synchronized void onComplete() {
            say("COMPLETE");
            over = true;
            notifyAll();
        }

        @Override
        public void onSubscribe(final Flow.Subscription subscription) {
            subscription.request(Long.MAX_VALUE);
        }

        @Override
        public void clientEndStreamReceived() {}

        /** Send items in requests of at most the soft limit; a larger item has a request of its own. */
        private void items(final List<Bytes> items) {
            final long soft = Long.parseLong(option("soft", "2097152"));
            int from = 0;
            long size = 0;
            for (int i = 0; i < items.size(); i++) {
                final long length = items.get(i).length();
                if (i > from && size + length > soft) {
                    set(items.subList(from, i));
                    from = i;
                    size = 0;
                }
                size += length;
                synchronized (this) {
                    if (over || moved) {
                        return; // the rest of this block is not wanted
                    }
                }
            }
            set(items.subList(from, items.size()));
        }

        private void set(final List<Bytes> items) {
            send(PublishStreamRequestBytes.newBuilder().blockItems(new BlockItemSetBytes(items)).build());
        }

        private void end(final long number) {
            send(PublishStreamRequestBytes.newBuilder().endOfBlock(new BlockEnd(number)).build());
        }

        private void endStream(final EndStream.Code code, final long earliest, final long latest) {
            final EndStreamBytes end = new EndStreamBytes(code, earliest, latest);
            send(PublishStreamRequestBytes.newBuilder().endStream(end).build());
        }

        private void send(final PublishStreamRequestBytes request) {
            call.sendRequest(request, false);
        }

        @Override
        public void close() {
            try {
                call.completeRequests();
            } catch (final RuntimeException error) {
                // A stream that the server reset cannot be completed.
            }
            connection.close();
        }
    }

    private boolean publish(final Path folder) throws Exception {
        find(folder);
        final long first = files.keySet().iterator().next();
        long last = first;
        for (final long number : files.keySet()) {
            last = number;
        }
        while (System.nanoTime() < deadline) {
            try {
                // A consensus node asks for the node's last block, and goes on after it; "none" is -1 in Java.
                final long stored = askStatus().lastAvailableBlock();
                if (stored >= last) {
                    say("DONE " + stored);
                    return true;
                }
                stream(Math.max(first, stored + 1), first, last);
            } catch (final Exception error) {
                say("ERROR " + describe(error));
            }
            Thread.sleep(500);
        }
        say("GAVE UP");
        return false;
    }

    /** Send from one block to the last, until all are acknowledged or the stream is over. */
    private void stream(final long from, final long first, final long last) throws Exception {
        final long pace = Long.parseLong(option("pace", "0"));
        say("CONNECT " + from);
        try (Publishing publishing = new Publishing(from)) {
            while (System.nanoTime() < deadline) {
                final long number;
                synchronized (publishing) {
                    while (!publishing.over && publishing.target > last && publishing.acknowledged < last) {
                        publishing.wait(1000);
                        if (System.nanoTime() > deadline) {
                            return;
                        }
                    }
                    if (publishing.over) {
                        return;
                    }
                    if (publishing.acknowledged >= last) {
                        // A consensus node leaves so: the first block that it still has, the last acknowledged.
                        publishing.endStream(EndStream.Code.RESET, first, publishing.acknowledged);
                        return;
                    }
                    number = publishing.target;
                    publishing.moved = false;
                }
                publishing.items(read(number));
                synchronized (publishing) {
                    if (!publishing.moved && !publishing.over) {
                        publishing.end(number);
                        publishing.target = number + 1;
                    }
                }
                if (pace > 0) {
                    Thread.sleep(pace);
                }
            }
        }
    }

    private boolean talk(final Path folder) throws Exception {
        find(folder);
        final BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Publishing publishing = new Publishing(0);
        say("CONNECTED");
        String command;
        while ((command = commands.readLine()) != null) {
            final String[] words = command.split(" ");
            synchronized (publishing) {
                publishing.moved = false; // standard input decides what is sent
            }
            try {
                switch (words[0]) {
                    case "block" -> {
                        publishing.items(read(number(words[1])));
                        publishing.end(number(words[1]));
                    }
                    case "items" -> {
                        final List<Bytes> items = read(number(words[1]));
                        final int to = Math.min(items.size(), Integer.parseInt(words[3]));
                        publishing.items(items.subList(Integer.parseInt(words[2]), to));
                    }
                    case "end" -> publishing.end(number(words[1]));
                    case "forged" -> {
                        final List<Bytes> items = new ArrayList<>(read(number(words[1])));
                        final byte[] proof = items.removeLast().toByteArray();
                        proof[proof.length - 1] ^= 1;
                        items.add(Bytes.wrap(proof));
                        publishing.items(items);
                        publishing.end(number(words[1]));
                    }
                    case "endstream" -> publishing.endStream(
                            EndStream.Code.valueOf(words[1]), number(words[2]), number(words[3]));
                    case "close" -> publishing.call.completeRequests();
                    case "connect" -> {
                        publishing.close();
                        publishing = new Publishing(0);
                        say("CONNECTED");
                    }
                    default -> throw new IllegalArgumentException("no such command: " + command);
                }
            } catch (final RuntimeException error) {
                say("NOT SENT " + command + ": " + describe(error));
            }
        }
        publishing.close();
        return true;
    }

    // subscribe ----------------------------------------------------------------------------------------------------

    private boolean subscribe(final long first, final long last) throws Exception {
        final CountDownLatch over = new CountDownLatch(1);
        final boolean[] good = {false};
        final Pipeline<Bytes> reader = new Pipeline<>() {
            private MessageDigest digest = digest();
            private int items;

            @Override
            public void onNext(final Bytes message) {
                try {
                    hear(message);
                } catch (final ParseException error) {
                    onError(error);
                }
            }

            private void hear(final Bytes message) throws ParseException {
                if (message.getByte(0) == (2 << 3 | 2)) {
                    for (final Bytes item : itemSet(message)) {
                        items++;
                        digest.update(item.toByteArray());
                    }
                    return;
                }
                final SubscribeStreamResponse response = SubscribeStreamResponse.PROTOBUF.parse(message);
                if (response.hasEndOfBlock()) {
                    final String hash = HexFormat.of().formatHex(digest.digest());
                    say("BLOCK " + response.endOfBlock().blockNumber() + " " + items + " " + hash);
                    items = 0;
                } else {
                    say("STATUS " + response.status());
                    good[0] = response.status() == SubscribeStreamResponse.Code.SUCCESS;
                }
            }

            @Override
            public void onError(final Throwable error) {
                say("ERROR " + describe(error));
                good[0] = false;
                over.countDown();
            }

            @Override
            public void onComplete() {
                say("COMPLETE");
                over.countDown();
            }

            @Override
            public void onSubscribe(final Flow.Subscription subscription) {
                subscription.request(Long.MAX_VALUE);
            }

            @Override
            public void clientEndStreamReceived() {}
        };
        final PbjGrpcClient connection = connect(Http2ClientProtocolConfig.builder()
                .initialWindowSize(BLOCK_NODE_WINDOW)
                .maxFrameSize(BLOCK_NODE_WINDOW)
                .build());
        final GrpcCall<SubscribeStreamRequest, Bytes> call =
                connection.createCall(SUBSCRIBE, SubscribeStreamRequest.PROTOBUF, new Unparsed(), reader, metadata());
        call.sendRequest(new SubscribeStreamRequest(first, last), true);
        if (!over.await(deadline - System.nanoTime(), TimeUnit.NANOSECONDS)) {
            say("GAVE UP");
        }
        return good[0];
    }

    /** The items of a SubscribeStreamResponse whose first and only field is 2, block_items. */
    private static List<Bytes> itemSet(final Bytes message) throws ParseException {
        final ReadableSequentialData in = message.toReadableSequentialData();
        in.readByte();
        in.readVarLong(false);
        return BlockItemSetBytes.PROTOBUF
                .parse(in, false, false, Codec.DEFAULT_MAX_DEPTH, MAX_MESSAGE_BYTES)
                .blockItems();
    }

    /** Messages as the bytes that came: a block node does not parse items either, and hashes what it got. */
    private static final class Unparsed implements Codec<Bytes> {
        @Override
        public Bytes parse(
                final ReadableSequentialData in,
                final boolean strict,
                final boolean unknownFields,
                final int maxDepth,
                final int maxSize) {
            return in.readBytes((int) in.remaining());
        }

        @Override
        public void write(final Bytes item, final WritableSequentialData out) {
            out.writeBytes(item);
        }

        @Override
        public int measure(final ReadableSequentialData in) {
            return (int) in.remaining();
        }

        @Override
        public int measureRecord(final Bytes item) {
            return (int) item.length();
        }

        @Override
        public boolean fastEquals(final Bytes item, final ReadableSequentialData in) {
            return item.equals(in.readBytes((int) in.remaining()));
        }

        @Override
        public Bytes getDefaultInstance() {
            return Bytes.EMPTY;
        }
    }

    private static MessageDigest digest() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (final java.security.NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    // Block files --------------------------------------------------------------------------------------------------

    private void find(final Path folder) throws IOException {
        try (Stream<Path> found = Files.list(folder)) {
            for (final Path path : found.toList()) {
                final String name = path.getFileName().toString();
                if (name.matches("\\d+\\.blk(\\.gz)?")) {
                    files.put(Long.parseLong(name.substring(0, name.indexOf('.'))), path);
                }
            }
        }
        if (files.isEmpty()) {
            throw new IOException(folder + " has no files NUMBER.blk or NUMBER.blk.gz");
        }
    }

    private List<Bytes> read(final long number) throws Exception {
        final Path path = files.get(number);
        if (path == null) {
            throw new IOException("there is no file of block " + number);
        }
        try (InputStream file = new BufferedInputStream(Files.newInputStream(path));
                InputStream in = path.toString().endsWith(".gz") ? new GZIPInputStream(file) : file) {
            final Bytes bytes = Bytes.wrap(in.readAllBytes());
            return BlockBytes.PROTOBUF
                    .parse(bytes.toReadableSequentialData(), false, false, Codec.DEFAULT_MAX_DEPTH, 2 * MAX_MESSAGE_BYTES)
                    .items();
        }
    }

    // Lines --------------------------------------------------------------------------------------------------------

    private String option(final String name, final String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    private static String line(final PublishStreamResponse answer) {
        return switch (answer.response().kind()) {
            case ACKNOWLEDGEMENT -> "ACK " + text(answer.acknowledgement().blockNumber());
            case SKIP_BLOCK -> "SKIP " + text(answer.skipBlock().blockNumber());
            case RESEND_BLOCK -> "RESEND " + text(answer.resendBlock().blockNumber());
            case NODE_BEHIND_PUBLISHER -> "BEHIND " + text(answer.nodeBehindPublisher().blockNumber());
            case END_STREAM -> "END " + answer.endStream().status() + " " + text(answer.endStream().blockNumber());
            default -> "UNSET";
        };
    }

    /** A block number; 2^64 - 1, which is -1 in Java, is none. */
    private static String text(final long number) {
        return number == NONE ? "none" : Long.toUnsignedString(number);
    }

    private static long number(final String text) {
        return switch (text) {
            case "none" -> NONE;
            case "min" -> Long.MIN_VALUE;
            default -> Long.parseLong(text);
        };
    }

    private static String describe(final Throwable error) {
        final StringBuilder text = new StringBuilder();
        for (Throwable one = error; one != null; one = one.getCause()) {
            if (!text.isEmpty()) {
                text.append(" < ");
            }
            if (one instanceof GrpcException grpc) {
                text.append("GRPC ").append(grpc.status()).append(' ');
            }
            text.append(one.getClass().getSimpleName()).append(' ').append(one.getMessage());
        }
        return text.toString().replaceAll("\\s+", " ");
    }

    private static synchronized void say(final String line) {
        System.out.println(line);
        System.out.flush();
    }
}
