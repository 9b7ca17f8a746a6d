import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Measures on the stock client what the official benchmark classes do not. Arguments: a mode and key=value pairs. The last
 * line printed is one JSON object.
 *
 * fill     Sends count messages of size bytes in batches of 32. numbered=1 gives each a property n of 0 to 99.
 * catchup  Consumes count messages from the first offset with a new group, passes times; sql=… reads through a filter.
 *          Prints the distinct messages of the pass with the fewest, and the median time between first and last message
 *          over the second half of the passes, when the JVM is warm.
 * latency  Sends at rate messages/s and consumes in the same program. Prints percentiles of the time from just before a
 *          send to the listener.
 * senders  Sends count messages through each of namesrvs=a,b,… in turns of block messages, one after the other, with
 *          threads (1) threads and a pause of pause_ms (0) before each turn. Prints, per namesrv, the messages per second
 *          of the median turn and percentiles of a send (rate_0, p50_ms_0, p99_ms_0, rate_1, …). signed=0,1,… and
 *          tls=0,1,… say which of them sign with access_key and secret_key, and which use TLS.
 */
public final class BenchClient {
    private static final int BATCH = 32;
    private static final int WARM_UP = 200;
    /** The default of 3 s ends a run when other programs are busy while connections begin. */
    private static final int SEND_TIMEOUT_MS = 30_000;
    private final Map<String, String> options = new HashMap<>();
    private int fewest = Integer.MAX_VALUE;

    public static void main(String[] args) throws Exception {
        BenchClient client = new BenchClient();
        for (String pair : Arrays.asList(args).subList(1, args.length)) {
            int split = pair.indexOf('=');
            client.options.put(pair.substring(0, split), pair.substring(split + 1));
        }
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // the client's threads would keep the program alive
        });
        String result;
        if (args[0].equals("fill")) {
            result = client.fill();
        } else if (args[0].equals("catchup")) {
            result = client.catchUp();
        } else if (args[0].equals("senders")) {
            result = client.senders();
        } else {
            result = client.latency();
        }
        System.out.println(result);
        System.exit(0); // shutting the client's threads down in order would take seconds
    }

    private int number(String key) {
        return Integer.parseInt(options.get(key));
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench_producer");
        producer.setNamesrvAddr(options.get("namesrv"));
        producer.start();
        return producer;
    }

    private DefaultMQPushConsumer consumer(int batch) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_" + System.currentTimeMillis());
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batch);
        String sql = options.get("sql");
        consumer.subscribe(options.get("topic"), sql == null ? MessageSelector.byTag("*") : MessageSelector.bySql(sql));
        return consumer;
    }

    private String fill() throws Exception {
        DefaultMQProducer producer = producer();
        String topic = options.get("topic");
        byte[] body = new byte[number("size")];
        Arrays.fill(body, (byte) '.');
        producer.send(new Message(topic, body)); // creates the topic, which a batch cannot
        boolean numbered = options.containsKey("numbered");
        AtomicInteger left = new AtomicInteger(number("count") - 1);
        ExecutorService pool = Executors.newFixedThreadPool(4);
        for (int i = 0; i < 4; i++) {
            pool.execute(() -> {
                for (int mine = left.getAndAdd(-BATCH); mine > 0; mine = left.getAndAdd(-BATCH)) {
                    sendBatch(producer, Collections.nCopies(Math.min(BATCH, mine), body), topic, numbered ? mine : -1);
                }
            });
        }
        pool.shutdown();
        pool.awaitTermination(5, TimeUnit.MINUTES);
        return "{\"filled\":" + number("count") + "}";
    }

    private static void sendBatch(DefaultMQProducer producer, List<byte[]> bodies, String topic, int number) {
        List<Message> messages = new ArrayList<>();
        for (byte[] body : bodies) {
            Message message = new Message(topic, body);
            if (number >= 0) {
                message.putUserProperty("n", String.valueOf((number + messages.size()) % 100));
            }
            messages.add(message);
        }
        try {
            if (producer.send(messages).getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("not SEND_OK");
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private String catchUp() throws Exception {
        int count = number("count");
        int passes = number("passes");
        double[] seconds = new double[passes];
        for (int i = 0; i < passes && fewest >= count; i++) {
            seconds[i] = consumeAll(count);
        }
        Arrays.sort(seconds, passes / 2, passes);
        double median = seconds[passes / 2 + (passes - passes / 2) / 2];
        return String.format("{\"distinct\":%d,\"seconds\":%.4f}", fewest, median);
    }

    private double consumeAll(int count) throws Exception {
        Map<String, BitSet> seen = new HashMap<>();
        long[] times = new long[2];
        int[] distinct = new int[1];
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(BATCH);
        consumer.setPullBatchSize(BATCH); // more than the server's maxTransferCountOnMessageInMemory has no effect
        // Large enough that the client's own flow control is not measured, by messages and by span of offsets, which a
        // filter widens.
        consumer.setPullThresholdForQueue(20_000);
        consumer.setConsumeConcurrentlyMaxSpan(65_535);
        consumer.registerMessageListener((List<MessageExt> messages, ConsumeConcurrentlyContext context) -> {
            long now = System.nanoTime();
            synchronized (seen) {
                times[0] = times[0] == 0 ? now : times[0];
                times[1] = now;
                for (MessageExt message : messages) {
                    String queue = message.getBrokerName() + message.getQueueId();
                    BitSet bits = seen.computeIfAbsent(queue, key -> new BitSet(count));
                    distinct[0] += bits.get((int) message.getQueueOffset()) ? 0 : 1;
                    bits.set((int) message.getQueueOffset());
                }
                if (distinct[0] >= count) {
                    all.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        all.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        synchronized (seen) {
            fewest = Math.min(fewest, distinct[0]);
            return (times[1] - times[0]) / 1e9;
        }
    }

    private String latency() throws Exception {
        int total = WARM_UP + number("count");
        long run = System.nanoTime();
        long[] taken = new long[total];
        CountDownLatch flowing = new CountDownLatch(1);
        CountDownLatch received = new CountDownLatch(total);
        DefaultMQProducer producer = producer();
        String topic = options.get("topic");
        producer.send(new Message(topic, stamped(0, -1)));
        DefaultMQPushConsumer consumer = consumer(1);
        consumer.registerMessageListener((List<MessageExt> messages, ConsumeConcurrentlyContext context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                int index = body.getLong() == run ? body.getInt() : -2;
                if (index == -1) {
                    flowing.countDown();
                } else if (index >= 0 && taken[index] == 0) {
                    taken[index] = now - body.getLong();
                    received.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int i = 0; i < 300 && !flowing.await(100, TimeUnit.MILLISECONDS); i++) {
            producer.send(new Message(topic, stamped(run, -1)));
        }
        for (int i = 0; i < number("warm_up"); i++) {
            producer.send(new Message(topic, stamped(run, -1)));
        }
        long begin = System.nanoTime();
        for (int i = 0; i < total; i++) {
            for (long due = begin + i * 1_000_000_000L / number("rate"); System.nanoTime() < due; ) {
                LockSupport.parkNanos(due - System.nanoTime());
            }
            producer.send(new Message(topic, stamped(run, i)));
        }
        received.await(10, TimeUnit.SECONDS);
        long[] sorted = Arrays.copyOfRange(taken, WARM_UP, total);
        Arrays.sort(sorted);
        return String.format("{\"lost\":%d,\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"max_ms\":%.4f}", received.getCount(),
            sorted[sorted.length / 2] / 1e6, sorted[sorted.length * 99 / 100] / 1e6, sorted[sorted.length - 1] / 1e6);
    }

    private String senders() throws Exception {
        String[] namesrvs = options.get("namesrvs").split(",");
        List<DefaultMQProducer> producers = new ArrayList<>();
        for (int i = 0; i < namesrvs.length; i++) {
            DefaultMQProducer producer = new DefaultMQProducer("bench_producer", isSet("signed", i) ? signing() : null);
            producer.setNamesrvAddr(namesrvs[i]);
            producer.setUseTLS(isSet("tls", i));
            producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
            producer.setInstanceName("side" + i);
            producer.start();
            producers.add(producer);
        }
        int count = number("count");
        int block = number("block");
        long[][] taken = new long[namesrvs.length][count];
        long[][] turns = new long[namesrvs.length][count / block];
        ExecutorService pool = Executors.newCachedThreadPool();
        for (int round = -number("warm_up") / block; round < count / block; round++) {
            for (int turn = 0; turn < namesrvs.length; turn++) {
                int i = (turn + Math.max(round, 0)) % namesrvs.length; // rotates the order, because the predecessor matters as well
                Thread.sleep(options.containsKey("pause_ms") ? number("pause_ms") : 0);
                long begin = System.nanoTime();
                sendBlock(pool, producers.get(i), block, round < 0 ? new long[block] : taken[i], Math.max(round, 0) * block);
                if (round >= 0) {
                    turns[i][round] = System.nanoTime() - begin;
                }
            }
        }
        StringBuilder result = new StringBuilder();
        for (int i = 0; i < namesrvs.length; i++) {
            Arrays.sort(taken[i]);
            Arrays.sort(turns[i]);
            result.append(String.format("%s\"rate_%d\":%.1f,\"p50_ms_%d\":%.4f,\"p99_ms_%d\":%.4f", i == 0 ? "{" : ",", i,
                block * 1e9 / turns[i][turns[i].length / 2], i, taken[i][count / 2] / 1e6, i, taken[i][count * 99 / 100] / 1e6));
        }
        return result.append("}").toString();
    }

    /** Returns whether the i-th part of an option such as 0,1,0 is 1; false without the option. */
    private boolean isSet(String key, int i) {
        return options.containsKey(key) && options.get(key).split(",")[i].equals("1");
    }

    private RPCHook signing() {
        return new AclClientRPCHook(new SessionCredentials(options.get("access_key"), options.get("secret_key")));
    }

    private void sendBlock(ExecutorService pool, DefaultMQProducer producer, int block, long[] taken, int from)
        throws Exception {
        int threads = options.containsKey("threads") ? number("threads") : 1;
        List<Future<?>> others = new ArrayList<>();
        for (int thread = 1; thread < threads; thread++) {
            int first = thread;
            others.add(pool.submit(() -> sendSome(producer, block, taken, from, first, threads)));
        }
        sendSome(producer, block, taken, from, 0, threads);
        for (Future<?> other : others) {
            other.get();
        }
    }

    private Void sendSome(DefaultMQProducer producer, int block, long[] taken, int from, int first, int step)
        throws Exception {
        byte[] body = new byte[number("size")];
        Arrays.fill(body, (byte) '.');
        for (int i = first; i < block; i += step) {
            long begin = System.nanoTime();
            if (producer.send(new Message(options.get("topic"), body)).getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("not SEND_OK");
            }
            taken[from + i] = System.nanoTime() - begin;
        }
        return null;
    }

    private byte[] stamped(long run, int index) {
        return ByteBuffer.allocate(number("size")).putLong(run).putInt(index).putLong(System.nanoTime()).array();
    }
}
