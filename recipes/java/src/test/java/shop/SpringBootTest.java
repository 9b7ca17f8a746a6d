package shop;

import static org.awaitility.Awaitility.await;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.List;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;
import org.testcontainers.junit.jupiter.Container;
import org.testcontainers.junit.jupiter.Testcontainers;

/** The RocketMQ starter of Spring Boot. */
@Testcontainers
@org.springframework.boot.test.context.SpringBootTest(classes = ShopApplication.class)
class SpringBootTest {
    @Container
    static final RocketMqContainer ROCKETMQ = new RocketMqContainer();

    @DynamicPropertySource
    static void connect(DynamicPropertyRegistry properties) {
        properties.add("rocketmq.name-server", ROCKETMQ::namesrvAddress);
        properties.add("rocketmq.producer.group", () -> "shop");
        properties.add("rocketmq.producer.send-message-timeout", () -> 20_000);
    }

    /** A new group learns of its retry topic within half a minute. */
    private static final Duration PATIENCE = Duration.ofSeconds(120);

    @Autowired
    private RocketMQTemplate template;

    @Autowired
    private ShopApplication.Packing packing;

    @Test
    void heavyOrderIsPackedAtTheSecondAttempt() throws Exception {
        template.convertAndSend("orders", "heavy table");
        await().atMost(PATIENCE).until(() -> packing.attempts.size() == 1);
        ROCKETMQ.waitFor("SCHEDULE_TOPIC_XXXX", 1);
        ROCKETMQ.advance(7200);
        await().atMost(PATIENCE).until(() -> packing.attempts.size() == 2);
        assertEquals(List.of("heavy table", "heavy table"), packing.attempts);
    }
}
