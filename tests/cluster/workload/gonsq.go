package workload

import (
	"context"
	"io"
	"log"
	"time"

	gonsq "github.com/nsqio/go-nsq"

	"penstock/tests/cluster/history"
)

var quiet = log.New(io.Discard, "", 0)

// ProduceGoNSQ starts a producer that uses go-nsq, one publish at a time. A publish without an answer is left, and a
// new client made for the next address. Window and Batch are not used.
func (r *Run) ProduceGoNSQ(p Producer) {
	p.setDefaults()
	p.Batch = 1
	r.producers.run(func(ctx context.Context) {
		s := &sender{Run: r, Producer: p, pace: pace{next: time.Now(), interval: time.Second / time.Duration(p.PerSecond)}}
		for at := 0; ctx.Err() == nil; at++ {
			s.goNSQ(ctx, s.Addresses[at%len(s.Addresses)])
			pause(ctx, firstPause)
		}
	})
}

// goNSQ publishes through one client until something fails.
func (s *sender) goNSQ(ctx context.Context, address string) {
	cfg := gonsq.NewConfig()
	cfg.DialTimeout = dialTimeout
	cfg.HeartbeatInterval = time.Second // a node that was stopped takes connections and never speaks
	cfg.ReadTimeout = 2 * time.Second
	client, err := gonsq.NewProducer(address, cfg)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	client.SetLogger(quiet, gonsq.LogLevelError)
	if client.Ping() != nil { // it connects: only what is sent later is in doubt
		seq := s.begin(0, address)
		s.end(seq, history.Fail, NoConnection)
		client.Stop()
		return
	}
	s.conn++
	for s.pace.wait(ctx) {
		if !s.goNSQPublish(client, address) {
			break
		}
	}
	// Stop waits for what is under way, which may be for ever: the node may be stopped.
	go client.Stop()
}

func (s *sender) goNSQPublish(client *gonsq.Producer, address string) bool {
	seq := s.begin(s.conn, address)
	done := make(chan *gonsq.ProducerTransaction, 1)
	err := client.PublishAsync(s.Topic, history.Body(s.Name, seq, s.BodyBytes), done)
	if err == nil {
		select {
		case tx := <-done:
			err = tx.Error
		case <-time.After(s.AnswerTimeout):
			s.end(seq, history.Unknown, timedOut)
			return false
		}
	}
	if err == nil {
		s.end(seq, history.OK, "")
		return true
	}
	if protocol, ok := err.(gonsq.ErrProtocol); ok && definite(protocol.Reason) {
		s.end(seq, history.Fail, protocol.Reason)
	} else {
		s.end(seq, history.Unknown, err.Error())
	}
	return false
}

// ConsumeGoNSQ starts a consumer that uses go-nsq and finds the nodes by lookups. Only Name, Channel and Ready are
// used. Its FINs are recorded before they are sent, and its connections are not known to the history.
func (r *Run) ConsumeGoNSQ(o Consumer) error {
	cfg := gonsq.NewConfig()
	cfg.MaxInFlight = max(o.Ready, 100)
	cfg.LookupdPollInterval = lookupPoll
	cfg.LookupdPollJitter = 0
	cfg.HeartbeatInterval = time.Second
	cfg.ReadTimeout = silence
	cfg.DialTimeout = dialTimeout
	cfg.MaxAttempts = 0 // it never gives a message up
	cfg.MaxBackoffDuration = 0
	client, err := gonsq.NewConsumer(r.Topic, o.Channel, cfg)
	if err != nil {
		return err
	}
	client.SetLogger(quiet, gonsq.LogLevelError)
	client.AddHandler(gonsq.HandlerFunc(func(m *gonsq.Message) error {
		e, err := r.delivery(string(m.ID[:]), m.Attempts, m.Body)
		if err != nil {
			return err
		}
		e.Client, e.Channel, e.Node = o.Name, o.Channel, m.NSQDAddress
		r.add(e)
		r.add(history.Event{Client: o.Name, Op: history.Fin, Topic: r.Topic, Channel: o.Channel, Message: e.Message})
		if e.Op == history.Deliver {
			r.tally.deliver(o.Channel, e.From, e.Seq)
		}
		return nil
	}))
	if err := client.ConnectToNSQLookupds(r.Lookups); err != nil {
		return err
	}
	r.consumers.run(func(ctx context.Context) {
		<-ctx.Done()
		client.Stop()
		<-client.StopChan
	})
	return nil
}
