package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Test;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;
import org.testcontainers.junit.jupiter.Container;
import org.testcontainers.junit.jupiter.Testcontainers;
import org.testcontainers.utility.DockerImageName;

/** The stock client with JUnit 5 and Testcontainers. */
@Testcontainers
class PlainClientTest {
    @Container
    static final RocketMqContainer ROCKETMQ = new RocketMqContainer();

    private static DefaultMQProducer startProducer(String namesrv) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("shop-producer-" + System.nanoTime());
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        return producer;
    }

    /** A retry after two hours is seen at once, and a busy broker costs the producer nothing but a second try. */
    @Test
    void failedOrderIsTriedAgain() throws Exception {
        BlockingQueue<Integer> attempts = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("shop");
        consumer.setNamesrvAddr(ROCKETMQ.namesrvAddress());
        consumer.subscribe("orders", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            int times = messages.get(0).getReconsumeTimes();
            context.setDelayLevelWhenNextConsume(18);
            attempts.add(times);
            return times == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = startProducer(ROCKETMQ.namesrvAddress());
        try {
            ROCKETMQ.injectFault("{\"action\": \"flow-control\", \"request\": \"send\", \"times\": 1}");
            Message order = new Message("orders", "coffee".getBytes());
            assertEquals(SendStatus.SEND_OK, producer.send(order).getSendStatus());
            assertEquals(0, attempts.poll(120, TimeUnit.SECONDS));
            ROCKETMQ.waitFor("SCHEDULE_TOPIC_XXXX", 1); // the consumer has sent it back
            ROCKETMQ.advance(7200);
            assertEquals(1, attempts.poll(120, TimeUnit.SECONDS)); // a new group learns of its retry topic in half a minute
        } finally {
            producer.shutdown();
            consumer.shutdown();
        }
    }

    /** As container classes for the official image do it: settings sent to the broker after its start. */
    @Test
    void publishedPortIsSetByAnAdminRequest() throws Exception {
        String image = System.getProperty("rocketmq.image", "rocketmq-gateway");
        try (GenericContainer<?> server = new GenericContainer<>(DockerImageName.parse(image))) {
            server.withExposedPorts(9876, 10911).withCommand("serve", "--memory")
                .waitingFor(Wait.forLogMessage(".*\"event\": \"ready\".*\\n", 1)).start();
            String namesrv = server.getHost() + ":" + server.getMappedPort(9876);
            String broker = server.getHost() + ":" + server.getMappedPort(10911);
            DefaultMQProducer producer = startProducer(namesrv);
            try {
                MQClientAPIImpl admin = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
                Properties changes = new Properties();
                changes.setProperty("brokerIP1", server.getHost());
                changes.setProperty("listenPort", String.valueOf(server.getMappedPort(10911)));
                admin.updateBrokerConfig(broker, changes, 20_000);
                List<String> addresses = List.copyOf(admin.getTopicRouteInfoFromNameServer("TBW102", 20_000)
                    .getBrokerDatas().get(0).getBrokerAddrs().values());
                assertEquals(List.of(broker), addresses);
                assertTrue(producer.send(new Message("orders", "tea".getBytes())).getMsgId().length() > 0);
            } finally {
                producer.shutdown();
            }
        }
    }
}
