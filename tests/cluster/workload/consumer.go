package workload

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/tests/cluster/history"
)

// Consumer takes a channel's messages from every node that lookups name, and confirms each.
type Consumer struct {
	Name    string
	Channel string
	Ready   int // messages in flight per connection; default 100
	// Creates says that subscribing makes the channel: that is recorded. Without it the channel was made before.
	Creates bool
	// Patient keeps a connection that is silent: the default is to leave it after three heartbeats of a second.
	Patient bool
	// Fixed are addresses to stay with instead of asking lookups.
	Fixed []string
}

const (
	lookupPoll    = 200 * time.Millisecond
	lookupTimeout = 500 * time.Millisecond
	silence       = 3 * time.Second
)

// Consume starts a consumer.
func (r *Run) Consume(o Consumer) {
	if o.Ready == 0 {
		o.Ready = 100
	}
	r.consumers.run(func(ctx context.Context) {
		c := &receiver{Run: r, Consumer: o, open: map[string]bool{}, gone: make(chan struct{}, 1)}
		c.run(ctx)
	})
}

// receiver is a running consumer.
type receiver struct {
	*Run
	Consumer

	mu      sync.Mutex
	conns   uint64
	open    map[string]bool // address → subscribed
	created bool
	gone    chan struct{} // a connection ended
}

func (c *receiver) run(ctx context.Context) {
	if c.Creates {
		c.add(history.Event{Client: c.Name, Op: history.Channel, Topic: c.Topic, Channel: c.Channel})
	}
	var conns sync.WaitGroup
	defer conns.Wait()
	for ctx.Err() == nil {
		addresses := c.Fixed
		if len(addresses) == 0 {
			addresses = c.lookup(ctx)
		}
		for _, address := range addresses {
			c.mu.Lock()
			_, known := c.open[address]
			if !known {
				c.open[address] = false
			}
			c.mu.Unlock()
			if !known {
				conns.Go(func() { c.serve(ctx, address) })
			}
		}
		c.noteCreated(addresses)
		select {
		case <-ctx.Done():
		case <-c.gone:
			pause(ctx, firstPause) // who closed it may be about to tell the lookups
		case <-time.After(lookupPoll):
		}
	}
}

// noteCreated records the channel once it is subscribed wherever lookups say that the topic is.
func (c *receiver) noteCreated(addresses []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.Creates || c.created || len(addresses) == 0 {
		return
	}
	for _, a := range addresses {
		if !c.open[a] {
			return
		}
	}
	c.created = true
	c.add(history.Event{Client: c.Name, Op: history.Exists, Topic: c.Topic, Channel: c.Channel})
	c.tally.exists(c.Channel, false)
}

// lookup asks all lookups, as clients do, and joins what they say.
func (c *receiver) lookup(ctx context.Context) []string {
	var mu sync.Mutex
	found := map[string]bool{}
	var asked sync.WaitGroup
	for _, l := range c.Lookups {
		asked.Go(func() {
			addresses, err := lookup(ctx, l, c.Topic)
			if err != nil {
				return // another one knows, or the next time
			}
			mu.Lock()
			defer mu.Unlock()
			for _, a := range addresses {
				found[a] = true
			}
		})
	}
	asked.Wait()
	var all []string
	for a := range found {
		all = append(all, a)
	}
	return all
}

var lookups = &http.Client{Timeout: lookupTimeout, Transport: &http.Transport{DisableKeepAlives: true}}

func lookup(ctx context.Context, address, topic string) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/lookup?topic="+url.QueryEscape(topic),
		nil)
	if err != nil {
		return nil, err
	}
	resp, err := lookups.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("lookup: status %d", resp.StatusCode)
	}
	var answer struct {
		Producers []struct {
			Host string `json:"broadcast_address"`
			Port int    `json:"tcp_port"`
		} `json:"producers"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	var all []string
	for _, p := range answer.Producers {
		all = append(all, net.JoinHostPort(p.Host, strconv.Itoa(p.Port)))
	}
	return all, nil
}

// serve consumes over one connection until it ends.
func (c *receiver) serve(ctx context.Context, address string) {
	defer func() {
		c.mu.Lock()
		delete(c.open, address)
		c.mu.Unlock()
		select {
		case c.gone <- struct{}{}:
		default:
		}
	}()
	nc, err := dial(ctx, address)
	if err != nil {
		pause(ctx, firstPause)
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	defer nc.Close()
	c.mu.Lock()
	c.conns++
	id := c.conns
	c.mu.Unlock()
	c.add(history.Event{Client: c.Name, Op: history.Open, Conn: id, Node: address})
	err = c.subscribe(nc, address)
	for err == nil {
		err = c.step(nc, id, address)
	}
	c.add(history.Event{Client: c.Name, Op: history.Close, Conn: id, Node: address, Detail: err.Error()})
}

func (c *receiver) subscribe(nc *conn, address string) error {
	nc.command("IDENTIFY", []byte(`{"client_id":"`+c.Name+`","feature_negotiation":true,"heartbeat_interval":1000}`))
	nc.command("SUB "+c.Topic+" "+c.Channel, nil)
	nc.command("RDY "+strconv.Itoa(c.Ready), nil)
	if err := nc.flush(); err != nil {
		return err
	}
	for answers := 0; answers < 2; {
		kind, data, err := c.frame(nc)
		switch {
		case err != nil:
			return err
		case kind != frameResponse:
			return fmt.Errorf("frame %d %q", kind, data)
		case string(data) != heartbeat:
			answers++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[address] = true
	return nil
}

func (c *receiver) frame(nc *conn) (uint32, []byte, error) {
	deadline := time.Now().Add(silence)
	if c.Patient {
		deadline = time.Time{}
	}
	if err := nc.SetReadDeadline(deadline); err != nil {
		return 0, nil, err
	}
	return nc.frame()
}

// step takes one frame.
func (c *receiver) step(nc *conn, id uint64, address string) error {
	if nc.in.Buffered() == 0 { // nothing more is here: the FINs go out together
		if err := nc.flush(); err != nil {
			return err
		}
	}
	kind, data, err := c.frame(nc)
	switch {
	case err != nil:
		return err
	case kind == frameResponse && string(data) == heartbeat:
		nc.command("NOP", nil)
		return nc.flush()
	case kind == frameMessage:
		return c.message(nc, id, address, data)
	case kind == frameError && strings.HasPrefix(string(data), "E_FIN_FAILED"):
		return c.finRefused(id, string(data))
	}
	return fmt.Errorf("frame %d %q", kind, data)
}

// idBytes is where a message's id lies: behind its time and attempts.
const (
	idAt   = 8 + 2
	bodyAt = idAt + 16
)

func (c *receiver) message(nc *conn, id uint64, address string, data []byte) error {
	if len(data) < bodyAt {
		return fmt.Errorf("a message of %d bytes", len(data))
	}
	text := string(data[idAt:bodyAt])
	e, err := c.delivery(text, binary.BigEndian.Uint16(data[8:]), data[bodyAt:])
	if err != nil {
		return err
	}
	e.Client, e.Channel, e.Conn, e.Node = c.Name, c.Channel, id, address
	c.add(e)
	c.add(history.Event{Client: c.Name, Op: history.Fin, Topic: c.Topic, Channel: c.Channel, Message: e.Message, Conn: id})
	if e.Op == history.Deliver {
		c.tally.deliver(c.Channel, e.From, e.Seq)
	}
	nc.command("FIN "+text, nil)
	return nil
}

// delivery is the event of a message.
func (r *Run) delivery(id string, attempts uint16, body []byte) (history.Event, error) {
	message, err := strconv.ParseUint(id, 16, 64)
	if err != nil {
		return history.Event{}, fmt.Errorf("a message id that is none: %w", err)
	}
	e := history.Event{Op: history.Deliver, Topic: r.Topic, Message: message, Attempts: attempts}
	var ok bool
	if e.From, e.Seq, ok = history.ParseBody(body); !ok {
		e.Op, e.Detail = history.Garbage, fmt.Sprintf("%q", body[:min(len(body), 80)])
	}
	return e, nil
}

// finRefused records "E_FIN_FAILED FIN <id> failed …".
func (c *receiver) finRefused(id uint64, text string) error {
	fields := strings.Fields(text)
	if len(fields) < 3 {
		return errors.New(text)
	}
	message, err := strconv.ParseUint(fields[2], 16, 64)
	if err != nil {
		return errors.New(text)
	}
	c.add(history.Event{
		Client: c.Name, Op: history.FinErr, Topic: c.Topic, Channel: c.Channel, Message: message, Conn: id, Detail: text,
	})
	return nil
}
