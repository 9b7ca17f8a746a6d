package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// command holds the fields of all operations; see ../java/CommandLoop.java and ../java/grpc.
type command struct {
	ID           int            `json:"id"`
	Op           string         `json:"op"`
	Name         string         `json:"name"`
	Endpoints    string         `json:"endpoints"`
	AccessKey    string         `json:"access_key"`
	SecretKey    string         `json:"secret_key"`
	Topics       []string       `json:"topics"`
	Transactions bool           `json:"transactions"`
	Attempts     int32          `json:"attempts"`
	Messages     []fields       `json:"messages"`
	Message      fields         `json:"message"`
	End          string         `json:"end"`
	Group        string         `json:"group"`
	AwaitMs      int64          `json:"await_ms"`
	Subscribed   []subscription `json:"subscriptions"`
	Count        int32          `json:"count"`
	InvisibleMs  int64          `json:"invisible_ms"`
	Index        int            `json:"index"`
	Failures     int32          `json:"failures"`
	TimeoutMs    int64          `json:"timeout"`
}

type subscription struct {
	Topic string  `json:"topic"`
	Tags  *string `json:"tags"`
	SQL   *string `json:"sql"`
}

type operation func(command) (any, error)

// runCommands runs the commands of standard input, each in a goroutine of its own, until it ends.
func runCommands(operations map[string]operation) {
	answers := os.Stdout
	os.Stdout = os.Stderr // the output of the client must not mix with the answers
	var lock sync.Mutex
	answer := func(line []byte) {
		var wanted command
		result := map[string]any{}
		if err := json.Unmarshal(line, &wanted); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		result["id"] = wanted.ID
		if found, err := operations[wanted.Op](wanted); err != nil {
			result["error"] = describeError(err)
		} else {
			result["ok"] = found
		}
		text, _ := json.Marshal(result)
		lock.Lock()
		defer lock.Unlock()
		fmt.Fprintf(answers, "%s\n", text)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		go answer(append([]byte(nil), lines.Bytes()...))
	}
}

func describeError(err error) map[string]any {
	described := map[string]any{"type": fmt.Sprintf("%T", err), "code": -1, "message": err.Error()}
	if status, found := rmq.AsErrRpcStatus(err); found {
		described["type"], described["code"] = "ErrRpcStatus", status.GetCode()
	}
	return described
}

// collected holds messages that goroutines of the client add, and that a command waits for.
type collected struct {
	lock  sync.Mutex
	items []map[string]any
}

func (c *collected) add(item map[string]any) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.items = append(c.items, item)
}

func (c *collected) copy() []map[string]any {
	c.lock.Lock()
	defer c.lock.Unlock()
	return append([]map[string]any{}, c.items...)
}

// wait returns all items, once there are count of them or the time is up.
func (c *collected) wait(count int, timeoutMs int64) []map[string]any {
	end := time.Now().Add(time.Duration(timeoutMs) * time.Millisecond)
	for len(c.copy()) < count && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	return c.copy()
}
