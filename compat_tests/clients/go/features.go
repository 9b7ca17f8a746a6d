package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// patience is the time a feature waits for its messages; the machine may be busy.
const patience = 90 * time.Second

// delivery is one message as the listener received it.
type delivery struct {
	Body   string `json:"body"`
	Tag    string `json:"tag"`
	Queue  int    `json:"queue"`
	Offset int64  `json:"offset"`
	Times  int32  `json:"times"`
	WaitMs int64  `json:"wait_ms"`
}

// inbox collects deliveries in their order and closes done when there are enough.
type inbox struct {
	lock   sync.Mutex
	all    []delivery
	wanted int
	done   chan struct{}
}

func (box *inbox) add(message *primitive.MessageExt) {
	box.lock.Lock()
	defer box.lock.Unlock()
	box.all = append(box.all, delivery{string(message.Body), message.GetTags(), message.Queue.QueueId, message.QueueOffset,
		message.ReconsumeTimes, message.StoreTimestamp - message.BornTimestamp})
	if len(box.all) == box.wanted {
		close(box.done)
	}
}

// feature is one feature of the Go client: the messages to send, the options to consume with, and the number of
// deliveries to expect.
type feature struct {
	messages func(topic string) []*primitive.Message
	batch    bool
	options  []consumer.Option
	selector consumer.MessageSelector
	wanted   int
	// fails reports whether the listener rejects a delivery.
	fails func(message *primitive.MessageExt) bool
}

func never(*primitive.MessageExt) bool { return false }

// numbered returns a factory for count messages with the bodies "0", "1", …; change adds what the feature needs.
func numbered(count int, change func(number int, message *primitive.Message)) func(string) []*primitive.Message {
	return func(topic string) []*primitive.Message {
		var messages []*primitive.Message
		for number := 0; number < count; number++ {
			message := primitive.NewMessage(topic, []byte(fmt.Sprint(number)))
			change(number, message)
			messages = append(messages, message)
		}
		return messages
	}
}

func colours(number int, message *primitive.Message) {
	message.WithTag([]string{"red", "green", "blue"}[number%3])
	message.WithProperty("number", fmt.Sprint(number))
}

var features = map[string]feature{
	"ordered": {
		messages: numbered(60, func(number int, message *primitive.Message) { message.WithShardingKey(fmt.Sprint(number % 5)) }),
		options:  []consumer.Option{consumer.WithConsumerOrder(true)}, wanted: 60, fails: never,
	},
	"delay": {
		messages: numbered(4, func(_ int, message *primitive.Message) { message.WithDelayTimeLevel(2) }), wanted: 4, fails: never,
	},
	"tags": {
		messages: numbered(30, colours), wanted: 20, fails: never,
		selector: consumer.MessageSelector{Type: consumer.TAG, Expression: "red || blue"},
	},
	"sql": {
		messages: numbered(30, colours), wanted: 10, fails: never,
		selector: consumer.MessageSelector{Type: consumer.SQL92, Expression: "number BETWEEN 5 AND 14 AND TAGS IS NOT NULL"},
	},
	"batch": {
		messages: numbered(20, func(int, *primitive.Message) {}), batch: true, wanted: 20, fails: never,
	},
	"retry": {
		messages: numbered(1, func(int, *primitive.Message) {}), wanted: 3,
		fails: func(message *primitive.MessageExt) bool { return message.ReconsumeTimes < 2 },
	},
}

// show runs a feature and prints its deliveries as JSON.
func show(name string, servers primitive.NsResolver, topic string) {
	if name == "request" {
		request(servers, topic)
		return
	}
	wish := features[name]
	client, err := rocketmq.NewProducer(producer.WithNsResolver(servers), producer.WithRetry(2),
		producer.WithGroupName(topic+"_producer"), producer.WithQueueSelector(producer.NewHashQueueSelector()))
	check("new producer", err)
	check("start producer", client.Start())
	messages := wish.messages(topic)
	if wish.batch {
		_, err = client.SendSync(context.Background(), messages...)
		check("send", err)
		messages = nil
	}
	for _, message := range messages {
		_, err = client.SendSync(context.Background(), message)
		check("send", err)
	}
	box := &inbox{wanted: wish.wanted, done: make(chan struct{})}
	stop := listen(servers, topic, wish, box)
	select {
	case <-box.done:
	case <-time.After(patience):
	}
	stop()
	check("stop producer", client.Shutdown())
	box.lock.Lock()
	defer box.lock.Unlock()
	text, err := json.Marshal(box.all)
	check("print", err)
	fmt.Println(string(text))
}

func listen(servers primitive.NsResolver, topic string, wish feature, box *inbox) func() {
	options := append([]consumer.Option{consumer.WithNsResolver(servers), consumer.WithGroupName(topic + "_group"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, wish.options...)
	client, err := rocketmq.NewPushConsumer(options...)
	check("new consumer", err)
	check("subscribe", client.Subscribe(topic, wish.selector,
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				box.add(message)
				if wish.fails(message) {
					if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
						concurrent.DelayLevelWhenNextConsume = 1
					}
					return consumer.ConsumeRetryLater, nil
				}
			}
			return consumer.ConsumeSuccess, nil
		}))
	check("start consumer", client.Start())
	return func() { check("stop consumer", client.Shutdown()) }
}

// request sends a request until it is answered: the broker learns from periodic heartbeats which client waits for a reply.
// This client can only ask: its own reply messages have no body.
func request(servers primitive.NsResolver, topic string) {
	asker, err := rocketmq.NewProducer(producer.WithNsResolver(servers), producer.WithGroupName(topic+"_asker"))
	check("new asker", err)
	check("start asker", asker.Start())
	answer := ""
	for end := time.Now().Add(patience); answer == "" && time.Now().Before(end); {
		reply, err := asker.Request(context.Background(), 5*time.Second, primitive.NewMessage(topic, []byte("question")))
		if err == nil && reply != nil {
			answer = string(reply.Body)
		}
	}
	text, err := json.Marshal([]delivery{{Body: answer}})
	check("print", err)
	fmt.Println(string(text))
}
