// RocketMQ in the tests of a Go program, with testcontainers-go and the Go client.
package shop

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/docker/go-connections/nat"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

const token = "only-for-tests"

// server is a RocketMQ in memory on free ports. Copy it into your tests.
type server struct {
	namesrv string
	control string
}

func startServer(t *testing.T) server {
	t.Helper()
	ctx := context.Background()
	image := os.Getenv("ROCKETMQ_IMAGE")
	if image == "" {
		image = "rocketmq-gateway"
	}
	running, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{
		ContainerRequest: testcontainers.ContainerRequest{
			Image:        image,
			Cmd:          []string{"serve", "--memory", "--control", "9880"},
			ExposedPorts: []string{"9876/tcp", "10911/tcp", "9880/tcp"},
			Env: map[string]string{
				"RMQ_GATEWAY_CONTROL_ADDRESS": "0.0.0.0",
				"RMQ_GATEWAY_CONTROL_TOKEN":   token,
			},
			WaitingFor: wait.ForLog(`"event": "ready"`),
		},
		Started: true,
	})
	testcontainers.CleanupContainer(t, running)
	check(t, err)
	address := func(port string) string {
		found, err := running.PortEndpoint(ctx, nat.Port(port+"/tcp"), "")
		check(t, err)
		return strings.Replace(found, "localhost", "127.0.0.1", 1) // the Go client takes addresses only
	}
	host, port, _ := strings.Cut(address("10911"), ":")
	// The published ports are known now, so the broker can be told which one leads to it.
	code, output, err := running.Exec(ctx, []string{
		"rmq-gateway", "broker", "config", "set", "--yes", "brokerIP1=" + host, "advertisedPort=" + port,
	})
	check(t, err)
	if code != 0 {
		text, _ := io.ReadAll(output)
		t.Fatalf("the broker's address cannot be set: %s", text)
	}
	return server{namesrv: address("9876"), control: "http://" + address("9880") + "/v1/"}
}

// call sends a request to the control API; a body makes it a POST.
func (s server) call(t *testing.T, operation, body string) string {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	request, err := http.NewRequest(method, s.control+operation, strings.NewReader(body))
	check(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	check(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	check(t, err)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", operation, text)
	}
	return string(text)
}

func TestFailedOrderIsTriedAgain(t *testing.T) {
	mq := startServer(t)
	mq.call(t, "topics", `{"topic": "orders", "queues": 1}`)
	mq.call(t, "faults", `{"action": "latency", "seconds": 0.2, "request": "send", "times": 1}`)

	send, err := rocketmq.NewProducer(producer.WithNameServer([]string{mq.namesrv}), producer.WithGroupName("shop"))
	check(t, err)
	check(t, send.Start())
	defer send.Shutdown()

	var attempts atomic.Int32
	receive, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{mq.namesrv}),
		consumer.WithGroupName("packing"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	check(t, err)
	check(t, receive.Subscribe("orders", consumer.MessageSelector{},
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			if attempts.Add(1) == 1 {
				if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
					concurrently.DelayLevelWhenNextConsume = 18 // two hours
				}
				return consumer.ConsumeRetryLater, nil
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(t, receive.Start())
	defer receive.Shutdown()

	started := time.Now()
	_, err = send.SendSync(context.Background(), primitive.NewMessage("orders", []byte("coffee")))
	check(t, err)
	if time.Since(started) < 200*time.Millisecond {
		t.Error("the injected latency was not noticed")
	}
	mq.call(t, "messages/wait?topic=SCHEDULE_TOPIC_XXXX&timeout_s=60", "") // the consumer has sent it back
	mq.call(t, "advance", `{"seconds": 7200}`)
	for end := time.Now().Add(120 * time.Second); attempts.Load() < 2; {
		if time.Now().After(end) {
			t.Fatalf("%d attempts", attempts.Load())
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("attempts:", attempts.Load())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
