package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	natsConsumer = "bench"
	// natsPending is how many messages a consumer may have unacknowledged, as many as a consumer of NSQ.
	natsPending = nsqInFlight
	natsTimeout = 30 * time.Second // for one answer
)

// natsServers are one or three nats-servers with JetStream; a topic is a stream on files, a subscription a durable pull
// consumer of it. Clients use the server that leads the stream.
type natsServers struct {
	procs []*process
	names []string
	urls  []string
	says  string
	leads map[string]string // by topic, the address
}

// startNATS starts servers with JetStream's defaults, but for sync_interval if it is given.
func startNATS(nodes int, syncInterval string) func(context.Context, place) (server, error) {
	return func(ctx context.Context, at place) (server, error) {
		binary, err := goTool("nats-server")
		if err != nil {
			return nil, err
		}
		said, err := exec.Command(binary, "--version").Output()
		if err != nil {
			return nil, err
		}
		ports, err := freePorts(2 * nodes)
		if err != nil {
			return nil, err
		}
		_, says, _ := strings.Cut(firstLine(said), ": ")
		s := &natsServers{says: says, leads: map[string]string{}}
		for i := range nodes {
			name := fmt.Sprintf("n%d", i+1)
			file := filepath.Join(at.dir, name+".conf")
			text := natsConfig(name, filepath.Join(at.dir, name), syncInterval, ports[i], ports[nodes:], i)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				return nil, errors.Join(err, s.end())
			}
			p, err := spawn(at.dir, name, nil, binary, "--config", file)
			if err != nil {
				return nil, errors.Join(err, s.end())
			}
			s.procs, s.names = append(s.procs, p), append(s.names, name)
			s.urls = append(s.urls, "nats://"+loopback(ports[i]))
		}
		if err := s.procs[0].await(func() error { return s.prepare("ready", false) }); err != nil {
			return nil, errors.Join(err, s.end())
		}
		return s, nil
	}
}

// natsConfig is a server's configuration. There is one route for each server of a cluster.
func natsConfig(name, dir, syncInterval string, port int, routes []int, self int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "server_name: %s\nlisten: %q\njetstream {\n  store_dir: %q\n", name, loopback(port), dir)
	if syncInterval != "" {
		fmt.Fprintf(&b, "  sync_interval: %s\n", syncInterval)
	}
	b.WriteString("}\n")
	if len(routes) > 1 {
		fmt.Fprintf(&b, "cluster {\n  name: bench\n  listen: %q\n  routes: [", loopback(routes[self]))
		for i, r := range routes {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%q", "nats://"+loopback(r))
		}
		b.WriteString("]\n}\n")
	}
	return b.String()
}

func (s *natsServers) version() string { return s.says }
func (s *natsServers) stop()           { _ = s.end() }

func (s *natsServers) end() error {
	for _, p := range s.procs {
		p.stop()
	}
	return nil
}

func (s *natsServers) pids() []int {
	all := make([]int, len(s.procs))
	for i, p := range s.procs {
		all[i] = p.cmd.Process.Pid
	}
	return all
}

// connect opens one connection to a topic's leader, or to the first server while the topic has none.
func (s *natsServers) connect(topic string) (*nats.Conn, jetstream.JetStream, error) {
	url := s.leads[topic]
	if url == "" {
		url = s.urls[0]
	}
	c, err := nats.Connect(url, nats.IgnoreDiscoveredServers(), nats.Timeout(natsTimeout))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(c, jetstream.WithPublishAsyncMaxPending(maxWindow), jetstream.WithDefaultTimeout(natsTimeout))
	if err != nil {
		c.Close()
	}
	return c, js, err
}

func (s *natsServers) prepare(topic string, consumed bool) error {
	c, js, err := s.connect(topic)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), natsTimeout)
	defer cancel()
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage, Replicas: len(s.procs),
	})
	if err != nil {
		return err
	}
	if consumed {
		_, err = stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: natsConsumer, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: natsPending,
		})
		if err != nil {
			return err
		}
	}
	return s.awaitLeader(ctx, stream, topic)
}

// awaitLeader waits until a stream has a leader, and followers that have caught up.
func (s *natsServers) awaitLeader(ctx context.Context, stream jetstream.Stream, topic string) error {
	for ; ; time.Sleep(pollEvery) {
		info, err := stream.Info(ctx)
		if err != nil {
			return err
		}
		if len(s.procs) == 1 {
			s.leads[topic] = s.urls[0]
			return nil
		}
		current := 0
		if info.Cluster != nil {
			for _, r := range info.Cluster.Replicas {
				if r.Current {
					current++
				}
			}
			for i, name := range s.names {
				if name == info.Cluster.Leader && current == len(s.procs)-1 {
					s.leads[topic] = s.urls[i]
					return nil
				}
			}
		}
	}
}

// natsProducer is one connection.
type natsProducer struct {
	c     *nats.Conn
	js    jetstream.JetStream
	topic string
	sent  chan natsSent // in the order of the calls
}

type natsSent struct {
	answer jetstream.PubAckFuture
	at     time.Duration
}

func (s *natsServers) producer(topic string, acked func(time.Duration, error)) (producer, error) {
	c, js, err := s.connect(topic)
	if err != nil {
		return nil, err
	}
	p := &natsProducer{c: c, js: js, topic: topic, sent: make(chan natsSent, maxWindow)}
	go func() {
		for s := range p.sent {
			acked(s.at, natsAnswer(s.answer))
		}
	}()
	return p, nil
}

func natsAnswer(f jetstream.PubAckFuture) error {
	select {
	case <-f.Ok():
		return nil
	case err := <-f.Err():
		return err
	}
}

func (p *natsProducer) publish(body []byte) error {
	_, err := p.js.Publish(context.Background(), p.topic, body)
	return err
}

// publishBatch publishes one after the other and waits for all answers, as nats.go has no batches.
func (p *natsProducer) publishBatch(bodies [][]byte) error {
	answers := make([]jetstream.PubAckFuture, len(bodies))
	var err error
	for i, b := range bodies {
		if answers[i], err = p.js.PublishAsync(p.topic, b); err != nil {
			return err
		}
	}
	for _, a := range answers {
		if err := natsAnswer(a); err != nil {
			return err
		}
	}
	return nil
}

func (p *natsProducer) publishAsync(body []byte, sent time.Duration) error {
	f, err := p.js.PublishAsync(p.topic, body)
	if err == nil {
		p.sent <- natsSent{f, sent}
	}
	return err
}

func (p *natsProducer) close() {
	close(p.sent)
	p.c.Close()
}

func (s *natsServers) consume(topic string, handle func([]byte)) (func(), error) {
	c, js, err := s.connect(topic)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), natsTimeout)
	defer cancel()
	consumer, err := js.Consumer(ctx, topic, natsConsumer)
	if err != nil {
		c.Close()
		return nil, err
	}
	run, err := consumer.Consume(func(m jetstream.Msg) {
		handle(m.Data())
		_ = m.Ack() // it is buffered; one that gets lost shows as a message delivered twice
	}, jetstream.PullMaxMessages(natsPending))
	if err != nil {
		c.Close()
		return nil, err
	}
	return func() {
		run.Stop()
		<-run.Closed()
		c.Close()
	}, nil
}
