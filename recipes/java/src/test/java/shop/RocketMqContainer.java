package shop;

import com.github.dockerjava.api.command.InspectContainerResponse;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;
import org.testcontainers.utility.DockerImageName;

/** RocketMQ in memory on free ports, with control of time and faults. Copy this class into your tests. */
public class RocketMqContainer extends GenericContainer<RocketMqContainer> {
    private static final int NAMESRV = 9876;
    private static final int BROKER = 10911;
    private static final int CONTROL = 9880;
    private static final String TOKEN = "only-for-tests";

    private final HttpClient http = HttpClient.newHttpClient();

    public RocketMqContainer() {
        super(DockerImageName.parse(System.getProperty("rocketmq.image", "rocketmq-gateway")));
        withExposedPorts(NAMESRV, BROKER, CONTROL);
        withEnv("RMQ_GATEWAY_CONTROL_ADDRESS", "0.0.0.0");
        withEnv("RMQ_GATEWAY_CONTROL_TOKEN", TOKEN);
        withCommand("serve", "--memory", "--control", String.valueOf(CONTROL));
        waitingFor(Wait.forLogMessage(".*\"event\": \"ready\".*\\n", 1));
    }

    /** The published ports are known now, so the broker can be told which one leads to it. */
    @Override
    protected void containerIsStarted(InspectContainerResponse started) {
        try {
            ExecResult done = execInContainer("rmq-gateway", "broker", "config", "set", "--yes",
                "brokerIP1=" + getHost(), "advertisedPort=" + getMappedPort(BROKER));
            if (done.getExitCode() != 0) {
                throw new IllegalStateException(done.getStdout() + done.getStderr());
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(error);
        }
    }

    public String namesrvAddress() {
        return getHost() + ":" + getMappedPort(NAMESRV);
    }

    /** Moves the servers' time ahead; returns when everything that became due is delivered. */
    public void advance(int seconds) throws Exception {
        post("advance", "{\"seconds\": " + seconds + "}");
    }

    /** Injects a fault, for instance {"action": "flow-control", "request": "send", "times": 1}. */
    public void injectFault(String fault) throws Exception {
        post("faults", fault);
    }

    /** Waits until a topic has that many messages, and returns them as JSON. */
    public String waitFor(String topic, int count) throws Exception {
        return send(request("messages/wait?topic=" + topic + "&count=" + count + "&timeout_s=30").GET().build());
    }

    private void post(String operation, String json) throws Exception {
        send(request(operation).POST(HttpRequest.BodyPublishers.ofString(json)).build());
    }

    private HttpRequest.Builder request(String operation) {
        String url = "http://" + getHost() + ":" + getMappedPort(CONTROL) + "/v1/" + operation;
        return HttpRequest.newBuilder(URI.create(url)).header("Authorization", "Bearer " + TOKEN);
    }

    private String send(HttpRequest request) throws Exception {
        HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IllegalStateException(answer.body());
        }
        return answer.body();
    }
}
