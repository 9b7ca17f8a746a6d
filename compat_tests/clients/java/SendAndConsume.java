import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages from a few threads, consumes them, and prints a JSON line with the messages acknowledged (sent), the
 * different messages received (distinct) and the deliveries in all. Arguments: namesrv topic count. With "-" for the
 * namesrv the clients find one by themselves.
 */
public final class SendAndConsume {
    private static final int THREADS = 4;

    private SendAndConsume() {
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        int sent = send(args[0], topic, count);
        Map<String, AtomicInteger> seen = new ConcurrentHashMap<>();
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "_group");
        setNamesrv(consumer, args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                if (seen.computeIfAbsent(body, key -> new AtomicInteger()).incrementAndGet() == 1) {
                    left.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        left.await(90, TimeUnit.SECONDS);
        consumer.shutdown();
        int deliveries = seen.values().stream().mapToInt(AtomicInteger::get).sum();
        System.out.printf("{\"sent\":%d,\"distinct\":%d,\"deliveries\":%d}%n", sent, seen.size(), deliveries);
        Runtime.getRuntime().halt(0);
    }

    private static void setNamesrv(ClientConfig client, String namesrv) {
        if (!"-".equals(namesrv)) {
            client.setNamesrvAddr(namesrv);
        }
    }

    private static int send(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(topic + "_producer");
        setNamesrv(producer, namesrv);
        producer.setSendMsgTimeout(30_000); // the first sends of a cold JVM on a busy machine take more than the usual 3 s
        producer.start();
        AtomicInteger next = new AtomicInteger();
        AtomicInteger sent = new AtomicInteger();
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            threads[i] = new Thread(() -> {
                for (int number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                    try {
                        byte[] body = ("message " + number).getBytes(StandardCharsets.UTF_8);
                        if (producer.send(new Message(topic, "TagA", body)).getSendStatus() == SendStatus.SEND_OK) {
                            sent.incrementAndGet();
                        }
                    } catch (Exception error) {
                        error.printStackTrace();
                    }
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        producer.shutdown();
        return sent.get();
    }
}
