import java.time.Duration;
import java.util.Collections;
import java.util.concurrent.CountDownLatch;

import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Loads a server through the stock client that speaks gRPC, until it is killed.
 *
 * send ENDPOINTS TOPIC THREADS         Sends messages of 128 bytes.
 * push ENDPOINTS TOPIC GROUP COUNT     Consumes; prints "ready" once the client has started, and "done" after COUNT
 *                                      messages.
 */
public final class GrpcLoad {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int BODY_BYTES = 128;

    private GrpcLoad() {
    }

    public static void main(String[] args) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[1]).enableSsl(false).setRequestTimeout(Duration.ofSeconds(10)).build();
        if (args[0].equals("send")) {
            send(configuration, args[2], Integer.parseInt(args[3]));
        } else {
            push(configuration, args[2], args[3], Integer.parseInt(args[4]));
        }
    }

    private static void send(ClientConfiguration configuration, String topic, int threads) throws Exception {
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics(topic).build();
        byte[] body = new byte[BODY_BYTES];
        for (int number = 0; number < threads; number++) {
            new Thread(() -> {
                while (true) {
                    Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build();
                    try {
                        producer.send(message);
                    } catch (Exception error) {
                        error.printStackTrace();
                        Runtime.getRuntime().halt(1);
                    }
                }
            }).start();
        }
    }

    private static void push(ClientConfiguration configuration, String topic, String group, int count)
        throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression("*")))
            .setMessageListener(message -> {
                left.countDown();
                return ConsumeResult.SUCCESS;
            })
            .build();
        System.out.println("ready");
        left.await();
        System.out.println("done");
        consumer.close();
    }
}
