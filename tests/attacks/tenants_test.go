//go:build attacks

package attacks

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/server/native/wire"
	"penstock/internal/shares"
	"penstock/netproto"
)

// serial makes names that are new.
var serial atomic.Int64

// What a tenant can do who may publish to, and consume from, topics of its own.
var byTenants = map[string]*attack{
	shares.LargeInput.Name: {
		setUp: func(n *node) { n.create("mallory", 1) },
		run: func(a *assault) {
			a.often(100, func(int) { // commands that are begun
				c, err := login(attacker, a.node.NSQ, "mallory")
				if err != nil {
					return
				}
				size := binary.BigEndian.AppendUint32(nil, 4<<20)
				a.holds(c, "MPUB mallory\n"+string(size)+strings.Repeat("\x00", 100<<10))
			})
			a.often(100, func(int) { // and bodies
				a.silent(a.node.HTTP, "POST /pub?topic=mallory HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer mallory\r\n"+
					"Content-Length: 1000000\r\n\r\n"+strings.Repeat("x", 20<<10))
			})
		},
		other: func(n *node) error {
			c, err := login(neighbor, n.NSQ, "good")
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.pub("good", strings.Repeat("x", 200<<10)); err != nil {
				return err
			}
			code, text, err := request(client(neighbor), "POST", "http://"+n.HTTP+"/pub?topic=good", "good",
				strings.Repeat("x", 100<<10))
			if err == nil && code != 200 {
				err = fmt.Errorf("POST /pub: %d %s", code, text)
			}
			return err
		},
	},
	shares.Connections.Name: {
		files: 1500,
		run: func(a *assault) {
			a.often(1200, func(i int) {
				if i%4 == 0 {
					if a.mayConnect() != nil {
						return
					}
					c, err := nativeClient(attacker, a.node.Native, "mallory")
					if err != nil {
						return
					}
					defer c.close()
					<-a.ctx.Done()
					return
				}
				a.silent(a.node.NSQ, "  V2AUTH\n"+sized("mallory"))
			})
		},
		other: func(n *node) error {
			if err := nativeLogin(n); err != nil {
				return err
			}
			return n.newTopic("good")
		},
	},
	shares.InflatedBytes.Name: {
		setUp: func(n *node) { n.create("mallory", 1); n.create("good", 1) },
		run: func(a *assault) {
			bomb := packed(4<<20, 40<<10)
			a.often(32, func(int) {
				c, err := nativeClient(attacker, a.node.Native, "mallory")
				if err != nil {
					return
				}
				defer c.close()
				topic, err := c.topic("mallory")
				for err == nil && a.ctx.Err() == nil {
					_, err = c.ask(wire.TypeProduce, wire.Append(nil, &wire.Produce{Topic: topic}), bomb)
					a.done.Add(1)
				}
			})
		},
		other: func(n *node) error { return produces(n, packed(100<<10, 10<<10)) },
	},
	shares.Topics.Name: {
		flags: []string{"--max-topics", "60"},
		run: func(a *assault) {
			c, err := login(attacker, a.node.NSQ, "mallory")
			for err == nil && a.ctx.Err() == nil {
				if c.pub(fmt.Sprintf("mallory-%d", serial.Add(1)), "x") != nil {
					c.Close()
					c, err = login(attacker, a.node.NSQ, "mallory")
				}
				a.done.Add(1)
			}
		},
		other: onlySometimes(20, func(n *node) error { return n.newTopic("good") }),
	},
	shares.Partitions.Name: {
		flags: []string{"--max-partitions", "400"},
		run: func(a *assault) {
			c := client(attacker)
			a.often(2, func(int) {
				_, _, _ = request(c, "POST", fmt.Sprintf("http://%s/topic/create?topic=mallory-%d&partitions=20", a.node.HTTP,
					serial.Add(1)), "owner", "")
			})
		},
		other: onlySometimes(20, func(n *node) error { return n.newTopic("good") }),
	},
	shares.ChannelState.Name: {
		flags: []string{"--max-state-bytes", "16777216"},
		run: func(a *assault) {
			a.often(4, func(int) {
				c, err := login(attacker, a.node.NSQ, "mallory")
				if err != nil {
					return
				}
				defer c.Close()
				if err := c.pub("mallory", "x"); err != nil {
					return
				}
				_, _ = c.Write([]byte("SUB mallory c\n"))
				for range 2000 {
					if a.ctx.Err() != nil {
						return
					}
					if err := c.delayed("mallory", 100); err != nil {
						return
					}
				}
			})
		},
		other: func(n *node) error {
			c, err := login(neighbor, n.NSQ, "good")
			if err != nil {
				return err
			}
			defer c.Close()
			return c.delayed("good", 1)
		},
	},
	shares.ProducerNames.Name: {
		setUp: func(n *node) { n.create("good", 1) },
		run: func(a *assault) {
			a.often(4, func(int) {
				c, err := nativeClient(attacker, a.node.Native, "guest")
				if err != nil {
					return
				}
				defer c.close()
				topic, err := c.topic("good")
				for err == nil && a.ctx.Err() == nil {
					open := wire.OpenProducer{Topic: topic, Name: fmt.Sprintf("p%d", serial.Add(1))}
					_, err = c.ask(wire.TypeOpenProducer, wire.Append(nil, &open), nil)
					a.done.Add(1)
				}
			})
		},
		other: opensOne(func(topic uuid.UUID) (netproto.Type, []byte) {
			open := wire.OpenProducer{Topic: topic, Name: fmt.Sprintf("good%d", serial.Add(1))}
			return wire.TypeOpenProducer, wire.Append(nil, &open)
		}),
	},
	shares.Subscriptions.Name: {
		setUp: func(n *node) { n.create("mallory", 1); n.create("good", 1) },
		run: func(a *assault) {
			a.often(70, func(i int) {
				a.opens(256, func(topic uuid.UUID) (netproto.Type, []byte) {
					return wire.TypeSubscribe, subscribe(topic, fmt.Sprintf("c%d", i%8))
				})
			})
		},
		other: opensOne(func(topic uuid.UUID) (netproto.Type, []byte) {
			return wire.TypeSubscribe, subscribe(topic, "mine")
		}),
	},
	shares.Readers.Name: {
		setUp: func(n *node) { n.create("mallory", 1); n.create("good", 1) },
		run: func(a *assault) {
			a.often(70, func(int) { a.opens(256, read) })
		},
		other: opensOne(read),
	},
	shares.NativeOutput.Name: {
		setUp: func(n *node) { n.fill("mallory", 30) },
		run: func(a *assault) {
			a.often(70, func(int) {
				c, err := nativeClient(attacker, a.node.Native, "mallory")
				if err != nil {
					return
				}
				defer c.close()
				topic, err := c.topic("mallory")
				if err != nil {
					return
				}
				c.deaf.Store(true)
				m := wire.Read{Topic: topic, From: wire.FromOldest, Credit: 1 << 30}
				_ = c.conn.TrySend(&netproto.Frame{Type: wire.TypeRead, Request: 9, Head: wire.Append(nil, &m)})
				<-a.ctx.Done()
			})
		},
		other: opensOne(read),
	},
	shares.NativeRequests.Name: {
		setUp: func(n *node) { n.create("mallory", 1); n.create("good", 1) },
		run: func(a *assault) {
			sealed := random(2 << 10)
			a.often(8, func(int) {
				c, err := nativeClient(attacker, a.node.Native, "mallory")
				if err != nil {
					return
				}
				defer c.close()
				topic, err := c.topic("mallory")
				for err == nil && a.ctx.Err() == nil {
					_, err = c.ask(wire.TypeProduce, wire.Append(nil, &wire.Produce{Topic: topic}), sealed)
					a.done.Add(1)
				}
			})
		},
		other: func(n *node) error { return produces(n, packed(100<<10, 10<<10)) },
	},
	shares.Disk.Name: {
		disk: 900 << 20,
		run: func(a *assault) {
			body := strings.Repeat("x", 256<<10)
			a.often(4, func(int) {
				c, err := login(attacker, a.node.NSQ, "mallory")
				for err == nil && a.ctx.Err() == nil {
					err = c.pub("mallory", body)
					a.done.Add(1)
					select { // thirty megabytes a second together: how fast a tenant may publish is not bounded
					case <-a.ctx.Done():
					case <-time.After(30 * time.Millisecond):
					}
				}
				if c != nil {
					_ = c.Close()
				}
			})
		},
	},
	shares.Traces.Name: {
		waits: true,
		setUp: func(n *node) { n.fill("mallory", 30) },
		run: func(a *assault) {
			c := client(attacker)
			a.often(8, func(int) {
				_, _, _ = request(c, "GET", "http://"+a.node.HTTP+"/topic/trace?topic=mallory&id="+strings.Repeat("0", 15)+"1",
					"mallory", "")
			})
		},
	},
}

// onlySometimes does it so often, and nothing later: what it takes is bounded, too.
func onlySometimes(times int, do func(n *node) error) func(n *node) error {
	var left atomic.Int64
	left.Store(int64(times))
	return func(n *node) error {
		if left.Add(-1) < 0 {
			return nil
		}
		return do(n)
	}
}

// create makes a topic.
func (n *node) create(topic string, partitions int) {
	n.t.Helper()
	path := fmt.Sprintf("/topic/create?topic=%s&partitions=%d", topic, partitions)
	if code, text := n.ask("POST", path, "root", ""); code != 200 {
		n.t.Fatalf("%s: %d %s", path, code, text)
	}
}

// fill publishes megabytes to a topic.
func (n *node) fill(topic string, megabytes int) {
	n.t.Helper()
	n.create(topic, 1)
	body := strings.Repeat(strings.Repeat("x", 1000)+"\n", 1000)
	for range megabytes {
		if code, text := n.ask("POST", "/mpub?topic="+topic, "mallory", body); code != 200 {
			n.t.Fatalf("%d %s", code, text)
		}
	}
}

// opens connects and opens so many of something in topic mallory, and holds them until the attack ends.
func (a *assault) opens(count int, what func(topic uuid.UUID) (netproto.Type, []byte)) {
	c, err := nativeClient(attacker, a.node.Native, "mallory")
	if err != nil {
		return
	}
	defer c.close()
	topic, err := c.topic("mallory")
	for range count {
		if err != nil || a.ctx.Err() != nil {
			return
		}
		typ, head := what(topic)
		_, err = c.ask(typ, head, nil)
		a.done.Add(1)
	}
	<-a.ctx.Done()
}

// opensOne has somebody else open one of something in topic good.
func opensOne(what func(topic uuid.UUID) (netproto.Type, []byte)) func(n *node) error {
	return func(n *node) error {
		c, err := nativeClient(neighbor, n.Native, "good")
		if err != nil {
			return err
		}
		defer c.close()
		topic, err := c.topic("good")
		if err != nil {
			return err
		}
		typ, head := what(topic)
		answer, err := c.ask(typ, head, nil)
		if err == nil && answer.Status != netproto.StatusOK {
			err = fmt.Errorf("%v %s", answer.Status, answer.Payload)
		}
		return err
	}
}

func read(topic uuid.UUID) (netproto.Type, []byte) {
	return wire.TypeRead, wire.Append(nil, &wire.Read{Topic: topic, From: wire.FromOldest, Credit: 1 << 16})
}

// newTopic publishes to a topic that does not exist yet.
func (n *node) newTopic(prefix string) error {
	c, err := login(neighbor, n.NSQ, "good")
	if err != nil {
		return err
	}
	defer c.Close()
	return c.pub(fmt.Sprintf("%s-new-%d", prefix, serial.Add(1)), "x")
}

// delayed publishes count messages that are due in an hour.
func (c *nsqConn) delayed(topic string, count int) error {
	one := "DPUB " + topic + " 3600000\n" + sized("x")
	if _, err := c.Write([]byte(strings.Repeat(one, count))); err != nil {
		return err
	}
	for range count {
		text, err := c.frame()
		switch {
		case err != nil:
			return err
		case text != "OK" && strings.HasPrefix(text, "E_"):
			return fmt.Errorf("%s", text)
		}
	}
	return nil
}

// native is a connection of a native client.
type native struct {
	conn    *netproto.Conn
	frames  chan answer
	request uint64
	deaf    atomic.Bool   // it reads no more
	ended   chan struct{} // closed by close
}

// answer is one frame, with bytes of its own.
type answer struct {
	netproto.Header
	Payload []byte
}

func (c *native) Frames(_ *netproto.Conn, frames []netproto.Received) error {
	if c.deaf.Load() {
		<-c.ended
		return nil
	}
	for i := range frames {
		a := answer{frames[i].Header, bytes.Clone(frames[i].Payload)}
		select {
		case c.frames <- a:
		default: // deliveries that nobody waits for
		}
	}
	return nil
}

func (c *native) Closed(*netproto.Conn, error) { close(c.frames) }

func (c *native) close() {
	close(c.ended)
	c.conn.Abort(nil)
}

// nativeClient connects and logs in.
func nativeClient(from, to, token string) (*native, error) {
	nc, err := dial(from, to)
	if err != nil {
		return nil, err
	}
	c := &native{frames: make(chan answer, 64), ended: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c.conn, err = netproto.Connect(ctx, nc, netproto.Options{
		Hello: netproto.Hello{Role: netproto.RoleClient, MinVersion: 1, MaxVersion: 1}, Handler: c,
	})
	if err != nil {
		return nil, err
	}
	if a, err := c.ask(wire.TypeAuth, wire.Append(nil, &wire.Auth{Token: token}), nil); err != nil ||
		a.Status != netproto.StatusOK {
		c.close()
		return nil, fmt.Errorf("Auth: %v %w", a.Status, err)
	}
	return c, nil
}

// ask sends a request and waits for its answer.
func (c *native) ask(typ netproto.Type, head, body []byte) (answer, error) {
	c.request++
	f := netproto.Frame{Type: typ, Request: c.request, Head: head}
	if body != nil {
		f.Flags, f.Body = netproto.FlagSelfChecked, [][]byte{body}
	}
	if err := c.conn.TrySend(&f); err != nil {
		return answer{}, err
	}
	for a := range c.frames {
		if a.Request == f.Request && a.Type != wire.TypeDeliver {
			return a, nil
		}
	}
	return answer{}, fmt.Errorf("the connection has ended")
}

// topic returns the id of a topic.
func (c *native) topic(name string) (uuid.UUID, error) {
	a, err := c.ask(wire.TypeMetadata, wire.Append(nil, &wire.MetadataRequest{Topics: []string{name}}), nil)
	if err != nil {
		return uuid.UUID{}, err
	}
	var m wire.Metadata
	if err := wire.Decode(a.Payload, &m); err != nil || len(m.Topics) != 1 || m.Topics[0].Status != netproto.StatusOK {
		return uuid.UUID{}, fmt.Errorf("%s: %+v %w", name, m.Topics, err)
	}
	return m.Topics[0].ID, nil
}

func subscribe(topic uuid.UUID, channel string) []byte {
	m := wire.Subscribe{
		Topic: topic, Channel: channel, Create: true, From: wire.FromDefault, Partition: wire.NoPartition,
		Messages: 1, Bytes: 1 << 16,
	}
	return wire.Append(nil, &m)
}

// nativeLogin connects a native client of somebody else.
func nativeLogin(n *node) error {
	c, err := nativeClient(neighbor, n.Native, "good")
	if err == nil {
		c.close()
	}
	return err
}

// produces has somebody else publish a compressed batch.
func produces(n *node, sealed []byte) error {
	c, err := nativeClient(neighbor, n.Native, "good")
	if err != nil {
		return err
	}
	defer c.close()
	topic, err := c.topic("good")
	if err != nil {
		return err
	}
	a, err := c.ask(wire.TypeProduce, wire.Append(nil, &wire.Produce{Topic: topic}), sealed)
	if err == nil && a.Status != netproto.StatusOK {
		err = fmt.Errorf("a batch: %v %s", a.Status, a.Payload)
	}
	return err
}

// random makes a batch of a message of so many random bytes.
func random(size int) []byte {
	body := make([]byte, size)
	_, _ = rand.Read(body)
	return sealed(batch.CodecNone, body)
}

// packed makes a batch of messages of nothing, and some random bytes so that it does not grow too much.
func packed(zeros, random int) []byte {
	bodies := make([][]byte, 8)
	for i := range bodies {
		bodies[i] = make([]byte, (zeros+random)/len(bodies))
		_, _ = rand.Read(bodies[i][:random/len(bodies)])
	}
	return sealed(batch.CodecS2, bodies...)
}

func sealed(codec batch.Codec, bodies ...[]byte) []byte {
	var b batch.Builder
	b.Reset(codec)
	for _, body := range bodies {
		if err := b.Add(&batch.Record{Body: body}); err != nil {
			panic(err)
		}
	}
	out, err := b.Seal(1)
	if err != nil {
		panic(err)
	}
	return out
}
