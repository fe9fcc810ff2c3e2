package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os/exec"
	"strings"
	"time"

	nsq "github.com/nsqio/go-nsq"
)

const (
	nsqChannel = "bench"
	// nsqInFlight is RDY, the number of messages that a consumer takes before it has finished the first: what nsqd
	// allows at most.
	nsqInFlight = 2500
)

// nsqNode is one process that speaks NSQ's protocol: an nsqd or a node of Penstock. Both are driven by this code.
type nsqNode struct {
	proc      *process
	tcp, http string
	says      string // its version
}

// startPenstock starts one node with all its defaults.
func startPenstock(binary string) func(context.Context, place) (server, error) {
	return func(_ context.Context, at place) (server, error) {
		says, err := penstockVersion(binary)
		if err != nil {
			return nil, err
		}
		return startNSQ(at, "penstock", says, func(tcp, http string) (string, []string) {
			return binary, []string{
				"serve", "--data-path", at.dir, "--nsq-address", tcp, "--http-address", http, "--lookup-address", "off",
			}
		})
	}
}

// penstockVersion is the version and the commit that a binary was built from.
func penstockVersion(binary string) (string, error) {
	text, err := exec.Command(binary, "version", "--json").Output()
	if err != nil {
		return "", fmt.Errorf("%s version --json: %w", binary, err)
	}
	var said struct{ Version, Commit string }
	if err := json.Unmarshal(text, &said); err != nil {
		return "", fmt.Errorf("%s version --json: %w", binary, err)
	}
	return fmt.Sprintf("%s, commit %.7s", said.Version, said.Commit), nil
}

// startNSQD starts an nsqd with all its defaults.
func startNSQD(_ context.Context, at place) (server, error) {
	binary, err := goTool("nsqd")
	if err != nil {
		return nil, err
	}
	said, err := exec.Command(binary, "-version").Output()
	if err != nil {
		return nil, err
	}
	return startNSQ(at, "nsqd", firstLine(said), func(tcp, http string) (string, []string) {
		return binary, []string{"-data-path", at.dir, "-tcp-address", tcp, "-http-address", http}
	})
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(line)
}

// startNSQ starts the command on two free ports and waits until it answers.
func startNSQ(at place, name, says string, command func(tcp, http string) (string, []string)) (server, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	n := &nsqNode{tcp: loopback(ports[0]), http: loopback(ports[1]), says: says}
	binary, args := command(n.tcp, n.http)
	if n.proc, err = spawn(at.dir, name, nil, binary, args...); err != nil {
		return nil, err
	}
	if err := n.proc.await(n.ping); err != nil {
		n.stop()
		return nil, err
	}
	return n, nil
}

func (n *nsqNode) ping() error {
	resp, err := http.Get("http://" + n.http + "/ping")
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/ping: %s", resp.Status)
	}
	return answers(n.tcp)
}

func (n *nsqNode) version() string { return n.says }
func (n *nsqNode) pids() []int     { return []int{n.proc.cmd.Process.Pid} }
func (n *nsqNode) stop()           { n.proc.stop() }

func (n *nsqNode) prepare(topic string, consumed bool) error {
	if err := n.post("/topic/create?topic=" + topic); err != nil || !consumed {
		return err
	}
	return n.post("/channel/create?topic=" + topic + "&channel=" + nsqChannel)
}

func (n *nsqNode) post(path string) error {
	resp, err := http.Post("http://"+n.http+path, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s: %s", path, resp.Status, text)
	}
	return nil
}

var silent = log.New(io.Discard, "", 0)

// nsqProducer is a go-nsq Producer, which has one connection.
type nsqProducer struct {
	p     *nsq.Producer
	topic string
	done  chan *nsq.ProducerTransaction
}

func (n *nsqNode) producer(topic string, acked func(time.Duration, error)) (producer, error) {
	return newNSQProducer(n.tcp, topic, acked)
}

func newNSQProducer(address, topic string, acked func(time.Duration, error)) (producer, error) {
	p, err := nsq.NewProducer(address, nsq.NewConfig())
	if err != nil {
		return nil, err
	}
	p.SetLogger(silent, nsq.LogLevelMax)
	if err := p.Ping(); err != nil {
		return nil, err
	}
	w := &nsqProducer{p: p, topic: topic, done: make(chan *nsq.ProducerTransaction, 1024)}
	go func() {
		for t := range w.done {
			acked(t.Args[0].(time.Duration), t.Error)
		}
	}()
	return w, nil
}

func (w *nsqProducer) publish(body []byte) error          { return w.p.Publish(w.topic, body) }
func (w *nsqProducer) publishBatch(bodies [][]byte) error { return w.p.MultiPublish(w.topic, bodies) }

func (w *nsqProducer) publishAsync(body []byte, sent time.Duration) error {
	return w.p.PublishAsync(w.topic, body, w.done, sent)
}

func (w *nsqProducer) close() {
	w.p.Stop() // answers what is outstanding with an error
	close(w.done)
}

func (n *nsqNode) consume(topic string, handle func([]byte)) (func(), error) {
	return nsqConsume(n.tcp, topic, handle)
}

func nsqConsume(address, topic string, handle func([]byte)) (func(), error) {
	cfg := nsq.NewConfig()
	cfg.MaxInFlight = nsqInFlight
	c, err := nsq.NewConsumer(topic, nsqChannel, cfg)
	if err != nil {
		return nil, err
	}
	c.SetLogger(silent, nsq.LogLevelMax)
	c.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		handle(m.Body)
		return nil
	}))
	if err := c.ConnectToNSQD(address); err != nil {
		return nil, err
	}
	return func() {
		c.Stop()
		<-c.StopChan
	}, nil
}
