// Sends messages with the official Go client, consumes them, and prints a JSON line with the messages acknowledged (sent),
// the different messages received (distinct) and the deliveries in all. Arguments: namesrv topic count ["transactions"].
// For the namesrv there may be the URL of an address server (http://…).
// With "transactions" each message is sent in a transaction; with "send" nothing is consumed, and the first error ends
// the program. A feature's name instead of a count runs that feature: see features.go. Requests are signed with the keys
// in the environment variables COMPAT_ACCESS_KEY and COMPAT_SECRET_KEY, if they are set.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const senders = 4

func check(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

// credentials returns the keys to sign with; empty ones make no signatures.
func credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: os.Getenv("COMPAT_ACCESS_KEY"), SecretKey: os.Getenv("COMPAT_SECRET_KEY")}
}

// send sends count messages and returns the number acknowledged.
func send(servers primitive.NsResolver, topic string, count int64) int64 {
	client, err := rocketmq.NewProducer(producer.WithNsResolver(servers), producer.WithRetry(2),
		producer.WithGroupName(topic+"_producer"), producer.WithCredentials(credentials()))
	check("new producer", err)
	check("start producer", client.Start())
	var next, sent int64
	var group sync.WaitGroup
	for worker := 0; worker < senders; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for number := atomic.AddInt64(&next, 1); number <= count; number = atomic.AddInt64(&next, 1) {
				message := primitive.NewMessage(topic, []byte(fmt.Sprintf("message %d", number))).WithTag("TagA")
				answer, err := client.SendSync(context.Background(), message)
				if err != nil || answer.Status != primitive.SendOK {
					fmt.Fprintln(os.Stderr, "send:", err, answer)
					continue
				}
				atomic.AddInt64(&sent, 1)
			}
		}()
	}
	group.Wait()
	check("stop producer", client.Shutdown())
	return sent
}

// sendOrFail sends count messages one after the other, and ends the program at the first error.
func sendOrFail(servers primitive.NsResolver, topic string, count int64) int64 {
	client, err := rocketmq.NewProducer(producer.WithNsResolver(servers), producer.WithRetry(0),
		producer.WithGroupName(topic+"_producer"), producer.WithCredentials(credentials()))
	check("new producer", err)
	check("start producer", client.Start())
	for number := int64(0); number < count; number++ {
		_, err := client.SendSync(context.Background(), primitive.NewMessage(topic, []byte("x")))
		check("send", err)
	}
	check("stop producer", client.Shutdown())
	return count
}

// receive consumes until count different messages came, and returns the numbers of different messages and of deliveries.
func receive(servers primitive.NsResolver, topic string, count int64) (int, int64) {
	client, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(servers), consumer.WithGroupName(topic+"_group"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithCredentials(credentials()))
	check("new consumer", err)
	var lock sync.Mutex
	seen := map[string]bool{}
	deliveries := int64(0)
	done := make(chan struct{})
	check("subscribe", client.Subscribe(topic, consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			lock.Lock()
			defer lock.Unlock()
			for _, message := range messages {
				deliveries++
				body := string(message.Body)
				if !seen[body] {
					seen[body] = true
					if int64(len(seen)) == count {
						close(done)
					}
				}
			}
			return consumer.ConsumeSuccess, nil
		}))
	check("start consumer", client.Start())
	select {
	case <-done:
	case <-time.After(90 * time.Second):
	}
	check("stop consumer", client.Shutdown())
	lock.Lock()
	defer lock.Unlock()
	return len(seen), deliveries
}

// resolver finds the namesrvs: at an address server if a URL is given.
func resolver(namesrv string) primitive.NsResolver {
	if strings.HasPrefix(namesrv, "http://") {
		return primitive.NewHttpResolver("DEFAULT", namesrv)
	}
	return primitive.NewPassthroughResolver([]string{namesrv})
}

func main() {
	rlog.SetLogLevel("error")
	servers := resolver(os.Args[1])
	if _, known := features[os.Args[3]]; known || os.Args[3] == "request" {
		show(os.Args[3], servers, os.Args[2])
		return
	}
	count, err := strconv.ParseInt(os.Args[3], 10, 64)
	check("count", err)
	if len(os.Args) > 4 && os.Args[4] == "send" {
		fmt.Printf("{\"sent\":%d,\"distinct\":0,\"deliveries\":0}\n", sendOrFail(servers, os.Args[2], count))
		return
	}
	sender := send
	if len(os.Args) > 4 && os.Args[4] == "transactions" {
		sender = sendInTransactions
	}
	sent := sender(servers, os.Args[2], count)
	distinct, deliveries := receive(servers, os.Args[2], count)
	fmt.Printf("{\"sent\":%d,\"distinct\":%d,\"deliveries\":%d}\n", sent, distinct, deliveries)
}
