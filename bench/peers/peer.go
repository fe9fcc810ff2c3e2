package main

import (
	"context"
	"path"
	"time"
)

// peer is one server in one configuration that can be measured.
type peer struct {
	Name string `json:"name"`
	// OK says what an acknowledged publish promises, for the reader of the report.
	OK    string `json:"ok"`
	Nodes int    `json:"nodes"`
	// Base is the name of the peer that ratios are taken to: a Penstock of as many nodes.
	Base string `json:"base"`

	start func(ctx context.Context, at place) (server, error)
}

// place is where a server may put what it needs.
type place struct {
	dir   string // an empty directory that is removed afterwards
	cache string // for downloads that later runs use again
}

// server is a peer that runs. All methods are called from one goroutine.
type server interface {
	// prepare makes a topic. If it is consumed, everything that is published from then on is kept for one subscription.
	prepare(topic string, consumed bool) error
	// producer opens one connection that publishes to a topic. acked is called for each publishAsync, from a goroutine
	// of the client, in the order of the answers.
	producer(topic string, acked func(sent time.Duration, err error)) (producer, error)
	// consume starts to read what was kept for the topic's subscription, on one connection, and acknowledges each
	// message after handle has returned. handle is never called twice at a time; the body is valid during the call.
	consume(topic string, handle func(body []byte)) (stop func(), err error)
	version() string
	pids() []int
	stop()
}

// producer is one connection. One goroutine at a time uses it.
type producer interface {
	publish(body []byte) error          // returns when the message is acknowledged
	publishBatch(bodies [][]byte) error // returns when all messages are
	// publishAsync returns when the client has taken the message; acked gets sent with the answer.
	publishAsync(body []byte, sent time.Duration) error
	close()
}

// matches says whether a name matches one of the patterns, which are those of path.Match.
func matches(patterns []string, name string) (bool, error) {
	for _, p := range patterns {
		ok, err := path.Match(p, name)
		if ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
