import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * A client and a broker that are never the bottleneck, to measure how many frames whatever lies between them carries.
 *
 * sink   Answers each frame with the same answer until it is killed. Prints {"port":…} first.
 * flood  to=host:port connections=N outstanding=N seconds=N: opens the connections, keeps that many requests outstanding
 *        on each, and prints {"rate":…}, the frames per second of the second half.
 */
public final class FrameFlood {
    private static final String REQUEST = "{\"code\":310,\"extFields\":{\"a\":\"flood\",\"b\":\"Flood\",\"c\":\"TBW102\","
        + "\"d\":\"4\",\"e\":\"3\",\"f\":\"0\",\"g\":\"1700000000000\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u0001"
        + "7F000001000000000000000000000000\\u0002WAIT\\u0001true\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\","
        + "\"n\":\"sink\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":77,\"serializeTypeCurrentRPC\":\"JSON\","
        + "\"version\":495}";
    private static final String ANSWER = "{\"code\":0,\"extFields\":{\"queueId\":\"3\",\"TRACE_ON\":\"true\","
        + "\"MSG_REGION\":\"DefaultRegion\",\"msgId\":\"%s0000000000000064\",\"queueOffset\":\"123\"},\"flag\":1,"
        + "\"language\":\"JAVA\",\"opaque\":77,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":495}";
    private static final int BODY = 128;
    private final ByteBuffer read = ByteBuffer.allocateDirect(1 << 18);
    private final Selector selector = Selector.open();
    private final boolean floods;
    private byte[] frame;
    private long taken;

    private FrameFlood(boolean floods) throws IOException {
        this.floods = floods;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String arg : args) {
            options.put(arg.split("=", 2)[0], arg.substring(arg.indexOf('=') + 1));
        }
        if (args[0].equals("sink")) {
            new FrameFlood(false).sink();
        } else {
            new FrameFlood(true).flood(options);
        }
    }

    private static byte[] framed(String header, int body) {
        byte[] head = header.getBytes(StandardCharsets.UTF_8);
        ByteBuffer bytes = ByteBuffer.allocate(8 + head.length + body);
        return bytes.putInt(4 + head.length + body).putInt(head.length).put(head).array();
    }

    private void sink() throws IOException {
        ServerSocketChannel server = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
        int port = ((InetSocketAddress) server.getLocalAddress()).getPort();
        // Message ids begin with the broker's address, which the gateway has to replace by its own.
        frame = framed(String.format(ANSWER, String.format("7F000001%08X", port)), 0);
        server.configureBlocking(false).register(selector, SelectionKey.OP_ACCEPT);
        System.out.println("{\"port\":" + port + "}");
        while (true) {
            turn();
        }
    }

    private void turn() throws IOException {
        selector.select(100);
        for (SelectionKey key : selector.selectedKeys()) {
            if (key.isAcceptable()) {
                watch(((ServerSocketChannel) key.channel()).accept());
            } else {
                answer(key);
            }
        }
        selector.selectedKeys().clear();
    }

    private void flood(Map<String, String> options) throws IOException {
        String[] to = options.get("to").split(":");
        frame = framed(REQUEST, BODY);
        for (int i = 0; i < Integer.parseInt(options.get("connections")); i++) {
            SocketChannel channel = SocketChannel.open(new InetSocketAddress(to[0], Integer.parseInt(to[1])));
            watch(channel);
            write(channel, Integer.parseInt(options.get("outstanding")));
        }
        long half = Long.parseLong(options.get("seconds")) * 500_000_000L;
        run(half);
        long before = taken;
        long begin = System.nanoTime();
        run(half);
        System.out.printf("{\"rate\":%.1f}%n", (taken - before) * 1e9 / (System.nanoTime() - begin));
        System.exit(0);
    }

    private void run(long nanos) throws IOException {
        for (long end = System.nanoTime() + nanos; System.nanoTime() < end; ) {
            turn();
        }
    }

    private void watch(SocketChannel channel) throws IOException {
        channel.configureBlocking(false);
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        channel.register(selector, SelectionKey.OP_READ, new int[2]);
    }

    private void answer(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        read.clear();
        if (channel.read(read) < 0) {
            if (floods) {
                throw new IOException("a connection was closed");
            }
            channel.close();
            return;
        }
        read.flip();
        int whole = count((int[]) key.attachment());
        taken += whole;
        write(channel, whole);
    }

    /** Counts the frames that end in the bytes read. state: prefix bytes read so far, and the length or the bytes still missing. */
    private int count(int[] state) {
        int whole = 0;
        while (read.hasRemaining()) {
            if (state[0] < 4) {
                state[0]++;
                state[1] = state[1] << 8 | read.get() & 0xFF;
                continue;
            }
            int part = Math.min(state[1], read.remaining());
            read.position(read.position() + part);
            state[1] -= part;
            if (state[1] == 0) {
                whole++;
                state[0] = 0;
            }
        }
        return whole;
    }

    private void write(SocketChannel channel, int frames) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(frames * frame.length);
        for (int i = 0; i < frames; i++) {
            bytes.put(frame);
        }
        bytes.flip();
        while (bytes.hasRemaining()) { // never much, because the peer has read the frames that these follow
            channel.write(bytes);
        }
    }
}
