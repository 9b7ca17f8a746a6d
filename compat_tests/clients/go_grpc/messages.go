package main

import (
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// fields describe a message to send; Size stands for a body of that many bytes.
type fields struct {
	Topic      string            `json:"topic"`
	Body       string            `json:"body"`
	Size       int               `json:"size"`
	Tag        *string           `json:"tag"`
	Keys       []string          `json:"keys"`
	Group      *string           `json:"group"`
	DelayMs    *int64            `json:"delay_ms"`
	Properties map[string]string `json:"properties"`
}

func (f fields) message() *rmq.Message {
	body := []byte(f.Body)
	if f.Size > 0 {
		body = make([]byte, f.Size)
	}
	made := &rmq.Message{Topic: f.Topic, Body: body, Tag: f.Tag}
	if len(f.Keys) > 0 {
		made.SetKeys(f.Keys...)
	}
	if f.Group != nil {
		made.SetMessageGroup(*f.Group)
	}
	if f.DelayMs != nil {
		made.SetDelayTimestamp(time.Now().Add(time.Duration(*f.DelayMs) * time.Millisecond))
	}
	for name, value := range f.Properties {
		made.AddProperty(name, value)
	}
	return made
}

func describe(message *rmq.MessageView) map[string]any {
	body := message.GetBody()
	text := ""
	if len(body) <= 1000 {
		text = string(body)
	}
	return map[string]any{
		"id":          message.GetMessageId(),
		"topic":       message.GetTopic(),
		"body":        text,
		"size":        len(body),
		"tag":         message.GetTag(),
		"keys":        message.GetKeys(),
		"group":       message.GetMessageGroup(),
		"properties":  message.GetProperties(),
		"attempt":     message.GetDeliveryAttempt(),
		"received_ms": time.Now().UnixMilli(),
	}
}

func config(wanted command) *rmq.Config {
	return &rmq.Config{
		Endpoint:      wanted.Endpoints,
		ConsumerGroup: wanted.Group,
		Credentials:   &credentials.SessionCredentials{AccessKey: wanted.AccessKey, AccessSecret: wanted.SecretKey},
	}
}

func filters(wanted command) map[string]*rmq.FilterExpression {
	made := map[string]*rmq.FilterExpression{}
	for _, each := range wanted.Subscribed {
		switch {
		case each.SQL != nil:
			made[each.Topic] = rmq.NewFilterExpressionWithType(*each.SQL, rmq.SQL92)
		case each.Tags != nil:
			made[each.Topic] = rmq.NewFilterExpression(*each.Tags)
		default:
			made[each.Topic] = rmq.SUB_ALL
		}
	}
	return made
}
