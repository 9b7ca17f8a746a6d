// Drives the stock Go client that speaks gRPC by commands: the operations of ../java/grpc but raw calls, and recalls, which
// v5.1.3 does not know. With the argument "tls" all its clients use TLS, because the client has one switch for the whole
// program; it does not verify certificates. go.mod is for v5.1.4; other versions have a file of their own.
package main

import (
	"context"
	"os"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

type producerSession struct {
	rmq.Producer
	checks collected
}

type simpleSession struct {
	rmq.SimpleConsumer
	lock     sync.Mutex
	received []*rmq.MessageView
}

type pushSession struct {
	rmq.PushConsumer
	received collected
}

// sessions holds the running clients by their names.
var sessions sync.Map

func session[T any](wanted command) T {
	found, _ := sessions.Load(wanted.Name)
	return found.(T)
}

// started keeps a client whose start came out well.
func started(wanted command, client any, err error) (any, error) {
	if err == nil {
		sessions.Store(wanted.Name, client)
	}
	return nil, err
}

func stop(wanted command) (any, error) {
	found, _ := sessions.LoadAndDelete(wanted.Name)
	return nil, found.(interface{ GracefulStop() error }).GracefulStop()
}

func startProducer(wanted command) (any, error) {
	made := &producerSession{}
	options := []rmq.ProducerOption{rmq.WithTopics(wanted.Topics...), rmq.WithMaxAttempts(wanted.Attempts)}
	if wanted.Transactions {
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: made.check}))
	}
	client, err := rmq.NewProducer(config(wanted), options...)
	if err != nil {
		return nil, err
	}
	made.Producer = client
	return started(wanted, made, client.Start())
}

// check answers as the message's property "check" says, and records it.
func (p *producerSession) check(message *rmq.MessageView) rmq.TransactionResolution {
	p.checks.add(describe(message))
	switch message.GetProperties()["check"] {
	case "COMMIT":
		return rmq.COMMIT
	case "ROLLBACK":
		return rmq.ROLLBACK
	}
	return rmq.UNKNOWN
}

func describeReceipts(receipts []*rmq.SendReceipt) []map[string]any {
	described := []map[string]any{}
	for _, each := range receipts {
		described = append(described, map[string]any{"id": each.MessageID})
	}
	return described
}

func send(wanted command) (any, error) {
	sent := []map[string]any{}
	for _, each := range wanted.Messages {
		receipts, err := session[*producerSession](wanted).Send(context.Background(), each.message())
		if err != nil {
			return nil, err
		}
		sent = append(sent, describeReceipts(receipts)...)
	}
	return sent, nil
}

// sendHalf sends a half message in a transaction of its own, and ends it as "end" says: commit, rollback or nothing.
func sendHalf(wanted command) (any, error) {
	producer := session[*producerSession](wanted)
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(context.Background(), wanted.Message.message(), transaction)
	if err != nil {
		return nil, err
	}
	switch wanted.End {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	return describeReceipts(receipts)[0], err
}

func startSimple(wanted command) (any, error) {
	client, err := rmq.NewSimpleConsumer(config(wanted),
		rmq.WithSimpleAwaitDuration(time.Duration(wanted.AwaitMs)*time.Millisecond),
		rmq.WithSimpleSubscriptionExpressions(filters(wanted)))
	if err != nil {
		return nil, err
	}
	return started(wanted, &simpleSession{SimpleConsumer: client}, client.Start())
}

func invisible(wanted command) time.Duration {
	return time.Duration(wanted.InvisibleMs) * time.Millisecond
}

func receive(wanted command) (any, error) {
	consumer := session[*simpleSession](wanted)
	messages, err := consumer.Receive(context.Background(), wanted.Count, invisible(wanted))
	if status, found := rmq.AsErrRpcStatus(err); found && status.GetCode() == noMessage {
		return []any{}, nil // this client calls it an error
	}
	consumer.lock.Lock()
	defer consumer.lock.Unlock()
	found := []map[string]any{}
	for _, message := range messages {
		described := describe(message)
		described["index"] = len(consumer.received)
		consumer.received = append(consumer.received, message)
		found = append(found, described)
	}
	return found, err
}

const noMessage = 40401

func (s *simpleSession) message(wanted command) *rmq.MessageView {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.received[wanted.Index]
}

func startPush(wanted command) (any, error) {
	made := &pushSession{}
	client, err := rmq.NewPushConsumer(config(wanted),
		rmq.WithPushSubscriptionExpressions(filters(wanted)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
			made.received.add(describe(message))
			if wanted.Failures >= 0 && message.GetDeliveryAttempt() > wanted.Failures {
				return rmq.SUCCESS
			}
			return rmq.FAILURE
		}}))
	if err != nil {
		return nil, err
	}
	made.PushConsumer = client
	return started(wanted, made, client.Start())
}

func main() {
	rmq.ResetLogger()
	rmq.EnableSsl = len(os.Args) > 1 && os.Args[1] == "tls"
	runCommands(map[string]operation{
		"hello":            func(command) (any, error) { return "ready", nil },
		"producer.start":   startProducer,
		"producer.stop":    stop,
		"send":             send,
		"transaction.send": sendHalf,
		"transaction.checks": func(wanted command) (any, error) {
			return session[*producerSession](wanted).checks.wait(int(wanted.Count), wanted.TimeoutMs), nil
		},
		"simple.start":   startSimple,
		"simple.stop":    stop,
		"simple.receive": receive,
		"simple.ack": func(wanted command) (any, error) {
			consumer := session[*simpleSession](wanted)
			return nil, consumer.Ack(context.Background(), consumer.message(wanted))
		},
		"simple.change": func(wanted command) (any, error) {
			consumer := session[*simpleSession](wanted)
			return nil, consumer.ChangeInvisibleDuration(consumer.message(wanted), invisible(wanted))
		},
		"push.start": startPush,
		"push.stop":  stop,
		"push.received": func(wanted command) (any, error) {
			return session[*pushSession](wanted).received.wait(int(wanted.Count), wanted.TimeoutMs), nil
		},
	})
}
