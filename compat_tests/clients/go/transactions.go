package main

import (
	"context"
	"fmt"
	"os"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// listener commits messages with the tag "commit" and rolls the others back.
type listener struct{}

func (listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	if message.GetTags() == "commit" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func (listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.UnknowState
}

// sendInTransactions commits count messages, rolls back as many, and returns the number of committed ones that were
// acknowledged.
func sendInTransactions(servers primitive.NsResolver, topic string, count int64) int64 {
	client, err := rocketmq.NewTransactionProducer(listener{}, producer.WithNsResolver(servers),
		producer.WithGroupName(topic+"_producer"))
	check("new transaction producer", err)
	check("start transaction producer", client.Start())
	sent := int64(0)
	for number := int64(1); number <= count; number++ {
		for _, tag := range []string{"commit", "rollback"} {
			message := primitive.NewMessage(topic, []byte(fmt.Sprintf("%s %d", tag, number))).WithTag(tag)
			answer, err := client.SendMessageInTransaction(context.Background(), message)
			if err != nil || answer.Status != primitive.SendOK {
				fmt.Fprintln(os.Stderr, "send:", err, answer)
			} else if tag == "commit" {
				sent++
			}
		}
	}
	check("stop transaction producer", client.Shutdown())
	return sent
}
