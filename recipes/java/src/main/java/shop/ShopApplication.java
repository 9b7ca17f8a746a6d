package shop;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.stereotype.Component;

/** A program with the RocketMQ starter of Spring Boot. */
@SpringBootApplication
public class ShopApplication {
    public static void main(String[] arguments) {
        SpringApplication.run(ShopApplication.class, arguments);
    }

    /** Packs what was ordered; the first attempt at something heavy fails, and the next one is due in two hours. */
    @Component
    @RocketMQMessageListener(topic = "orders", consumerGroup = "packing", delayLevelWhenNextConsume = 18)
    public static class Packing implements RocketMQListener<String> {
        public final List<String> attempts = new CopyOnWriteArrayList<>();

        @Override
        public void onMessage(String order) {
            boolean isFirst = !attempts.contains(order);
            attempts.add(order);
            if (order.startsWith("heavy") && isFirst) {
                throw new IllegalStateException("too heavy for now");
            }
        }
    }
}
