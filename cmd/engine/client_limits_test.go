package main

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nsqio/go-nsq"

	"penstock/tests/support/patience"
)

// go-nsq finishes a message by itself when it has come more often than its own limit, 5: with a higher limit of the
// channel there is no dead letter, and with the client's limit off there is. The pages of the clients, of dead letters
// and of replacing nsqd say so.
func TestClientsGiveUpBeforeTheChannel(t *testing.T) {
	p := startNode(t, t.TempDir())
	must := func(args ...string) {
		t.Helper()
		execute(t, append(args, "--http-address", p.http)...).well(t)
	}
	for topic, limit := range map[string]uint16{"given-up": 5, "kept": 0} {
		must("topic", "create", topic)
		must("channel", "create", topic, "c")
		must("channel", "set", topic, "c", "--max-attempts", "8")
		config := nsq.NewConfig()
		if config.MaxAttempts != 5 {
			t.Errorf("go-nsq's limit is %d, and the pages say 5", config.MaxAttempts)
		}
		config.MaxAttempts, config.DefaultRequeueDelay, config.MaxBackoffDuration = limit, 0, 0
		consumer, err := nsq.NewConsumer(topic, "c", config)
		if err != nil {
			t.Fatal(err)
		}
		consumer.SetLoggerLevel(nsq.LogLevelMax)
		consumer.AddHandler(nsq.HandlerFunc(func(*nsq.Message) error { return errors.New("it fails") }))
		if err := consumer.ConnectToNSQD(p.nsq); err != nil {
			t.Fatal(err)
		}
		post(p.http, "/pub?topic="+topic, "x")
		letters := func() (n int) {
			var list struct{ Messages []json.RawMessage }
			o := execute(t, "topic", "peek", topic+".DLQ", "--json", "--http-address", p.http)
			_ = json.Unmarshal([]byte(o.stdout), &list) // without the topic there is none
			return len(list.Messages)
		}
		finished := func() bool {
			o := execute(t, "channel", "list", topic, "--json", "--http-address", p.http)
			return strings.Contains(o.stdout, `"depth": 0`) && strings.Contains(o.stdout, `"in_flight_count": 0`) &&
				strings.Contains(o.stdout, `"outbox_count": 0`) && consumer.Stats().MessagesReceived > 5
		}
		for end := time.Now().Add(patience.Or(90 * time.Second)); !finished() || limit == 0 && letters() == 0; {
			if time.Now().After(end) {
				t.Fatalf("%s: the message is not done", topic)
			}
		}
		if got, want := letters(), map[uint16]int{5: 0, 0: 1}[limit]; got != want {
			t.Errorf("%s: %d dead letters, want %d", topic, got, want)
		}
		consumer.Stop()
		<-consumer.StopChan
	}
	for page, words := range map[string]string{
		"clients/go.md": "MaxAttempts = 0", "clients/python.md": "max_tries=0", "clients/javascript.md": "maxAttempts",
		"retries.md": "`MaxAttempts`", "replacing-nsqd.md": "`MaxAttempts`",
	} {
		data, err := os.ReadFile("../../docs/" + page)
		if err != nil || !strings.Contains(string(data), words) {
			t.Errorf("%s does not say that clients give up by themselves: %v", page, err)
		}
	}
}
