package nsq

import (
	"context"
	"errors"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/nsq/command"
	"penstock/internal/server/publish"
)

// execute executes one command. size is its length in the input.
func (c *conn) execute(cmd *command.Command, size int) *command.Fault {
	switch cmd.Verb {
	case command.VerbPub, command.VerbDpub:
		return c.publish(cmd, size)
	case command.VerbMpub:
		return c.publishBatch(cmd, size)
	case command.VerbPubExt, command.VerbPubTrace, command.VerbMpubExt, command.VerbMpubTrace:
		return c.publishExt(cmd, size)
	case command.VerbFin, command.VerbReq, command.VerbTouch:
		c.finish(cmd)
	case command.VerbRdy:
		if c.parser.Phase == command.PhaseSubscribed {
			c.ready = int(cmd.Number)
			c.consumer.Load().Ready(c.ready)
			c.pump = true
		}
	case command.VerbSub, command.VerbSubAdvanced, command.VerbSubOrdered:
		return c.subscribe(cmd)
	case command.VerbCls:
		c.parser.Phase = command.PhaseClosing
		c.consumer.Load().StopDelivery()
		c.reply(frameResponse, "CLOSE_WAIT")
	case command.VerbIdentify:
		return c.identify(cmd.Body, size)
	case command.VerbAuth:
		return c.authenticate(cmd.Body)
	}
	return nil
}

// publish adds a PUB or DPUB to the current run, or starts a new run. A run becomes one Put.
func (c *conn) publish(cmd *command.Command, size int) *command.Fault {
	delay := time.Duration(cmd.Number) * time.Millisecond
	if c.run == nil || !c.run.takes(cmd, delay) {
		c.submit()
		if f := c.mayPublish(cmd); f != nil {
			return f
		}
		t, err := c.target(cmd.Topic)
		if err != nil {
			c.srv.opts.Publishes.Refuse(err)
			refused := newPending(c, cmd.Verb)
			refused.Addressed, refused.Partition = cmd.Addressed, cmd.Partition
			return command.NewFault(publishRefused(refused, err))
		}
		c.begin(cmd, t)
		c.run.put.Defer = delay
	}
	c.run.add(cmd, size)
	return nil
}

// begin starts a run of PUBs or DPUBs like cmd.
func (c *conn) begin(cmd *command.Command, to *target) {
	r := newPending(c, cmd.Verb)
	r.Addressed, r.Partition = cmd.Addressed, cmd.Partition
	r.to = to
	r.buf = c.in.buf
	r.buf.retain()
	c.run = r
}

// takes reports whether a PUB or DPUB may join the run.
func (p *pending) takes(cmd *command.Command, delay time.Duration) bool {
	return p.verb == cmd.Verb && p.put.Defer == delay && p.to.name == string(cmd.Topic) &&
		p.Addressed == cmd.Addressed && p.Partition == cmd.Partition &&
		p.count < maxRunCount && p.bytes < maxRunBytes
}

// add adds a PUB or DPUB to the run.
func (p *pending) add(cmd *command.Command, size int) {
	p.put.Messages = append(p.put.Messages, cmd.Body)
	p.count++
	p.bytes += size
}

// publishBatch makes one Put from an MPUB.
func (c *conn) publishBatch(cmd *command.Command, size int) *command.Fault {
	c.submit()
	if f := c.mayPublish(cmd); f != nil {
		return f
	}
	t, err := c.target(cmd.Topic)
	p := newPending(c, cmd.Verb)
	p.Addressed, p.Partition = cmd.Addressed, cmd.Partition
	if err != nil {
		c.srv.opts.Publishes.Refuse(err)
		return command.NewFault(publishRefused(p, err))
	}
	p.to = t
	p.put.Messages = publish.Messages(p.put.Messages, cmd.Body)
	p.count, p.bytes = 1, size
	p.buf = c.in.buf
	p.buf.retain()
	c.run = p // the next command, or the end of the input, submits it
	return nil
}

// submit hands the run, if there is one, to the engine.
func (c *conn) submit() {
	p := c.run
	if p == nil {
		return
	}
	c.run = nil
	// A client that waits for each answer leaves the reader nothing else to do, so the engine may store the put on this
	// goroutine. The answer then goes out with the reader's own flush, and the flusher need not wake up. While c.place
	// is taken, a completion does not add the connection to the flusher's queue.
	alone := (p.count == 1) && len(c.in.unread()) == 0 && c.answers.idle()
	c.lone = alone
	c.owe(p)
	c.send(p, alone)
}

// owe adds a Put that will be sent to the answers.
func (c *conn) owe(p *pending) {
	if publish.Sampled() {
		p.arrived = c.lastByte.Load()
	}
	c.answers.push(p)
}

// send hands a Put that is owed to the engine. alone: see submit.
func (c *conn) send(p *pending, alone bool) {
	to := p.to
	p.put.Alone = alone
	if alone {
		c.place.Take()
	}
	err := p.send(to.topic)
	if alone {
		// A Put that completes from here on adds the connection to the flusher's queue; those that completed before are
		// drained here.
		c.place.Leave()
		c.drain()
	}
	if errors.Is(err, errs.ErrDeleted) { // the topic may have been created again since
		err = publish.RetryDeleted(c.ctx, func() error {
			if err := c.resolve(to); err != nil {
				return err
			}
			return p.send(to.topic)
		})
	}
	if err != nil {
		p.put.Err = err
		p.done.Store(true)
		c.drain()
	}
	c.waitRoom()
}

// finish executes FIN, REQ and TOUCH.
func (c *conn) finish(cmd *command.Command) {
	consumer := c.consumer.Load()
	id, err := c.messageID(cmd.ID)
	if err != nil {
		err = errs.ErrNotInFlight // no message has such an id
	} else {
		switch cmd.Verb {
		case command.VerbFin:
			c.flight.gave(id)
			c.settled++
			err = consumer.Finish(id)
		case command.VerbReq:
			c.flight.gave(id)
			c.settled++
			err = consumer.Requeue(id, c.requeueDelay(cmd.Number))
		default:
			if err = consumer.Touch(id); err == nil {
				c.flight.touched(id, c.srv.now())
			}
		}
	}
	c.flyOn()
	if err == nil {
		c.pump = true
		return
	}
	c.reply(frameError, failedMessage(cmd.Verb, string(cmd.ID), err))
}

func failedMessage(v command.Verb, id string, err error) string {
	return "E_" + v.String() + "_FAILED " + v.String() + " " + id + " failed " + finishFailure(err)
}

func (c *conn) requeueDelay(millis uint64) time.Duration {
	longest := c.srv.settings().MaxReqTimeout
	if millis >= uint64(longest/time.Millisecond) {
		return longest
	}
	return time.Duration(millis) * time.Millisecond
}

// finishFailure returns nsqd's wording of the error.
func finishFailure(err error) string {
	switch {
	case errors.Is(err, errs.ErrNotInFlight):
		return "ID not in flight"
	case errors.Is(err, errs.ErrNotOwner):
		return "client does not own message"
	}
	return err.Error()
}

// subscribe attaches the connection to a channel. It answers OK once the creation of the channel is on stable storage.
func (c *conn) subscribe(cmd *command.Command) *command.Fault {
	c.submit()
	topic, channel := string(cmd.Topic), string(cmd.Channel)
	if f := c.maySubscribe(topic, channel); f != nil {
		return f
	}
	c.waiting.Store(true)
	consumer, refused, err := c.attach(cmd, topic, channel)
	c.lastByte.Store(c.srv.now())
	c.waiting.Store(false)
	switch {
	case refused != nil:
		return refused
	case err == nil:
	case cmd.BeyondNSQ() && publish.YouzanCode(err) != "":
		return command.Faultf("%s SUB failed %v", publish.YouzanCode(err), err)
	case errors.Is(err, errs.ErrTooManyClients):
		return command.Faultf("E_SUB_FAILED SUB failed consumers for %s:%s exceeds limit of %d",
			topic, channel, c.srv.settings().MaxChannelConsumers)
	case errors.Is(err, errs.ErrDeleted):
		return command.NewFault("E_SUB_FAILED SUB failed to deleted topic/channel")
	default:
		return command.Faultf("E_SUB_FAILED SUB failed %v", err)
	}
	c.consumer.Store(consumer)
	c.parser.Phase, c.parser.BinaryIDs = command.PhaseSubscribed, c.form != nil
	c.reply(frameResponse, "OK")
	return nil
}

// attach finds or creates the topic and the channel, and subscribes. refused is the error frame for a SUB that asks for
// a partition, an order or a place that it cannot have.
func (c *conn) attach(cmd *command.Command, topic, channel string) (k *consumer, refused *command.Fault,
	err error,
) {
	set := c.set.Load()
	err = publish.RetryDeleted(c.ctx, func() error {
		t, created, err := c.srv.opts.Topic(c.ctx, topic, c.maker)
		if err != nil {
			return err
		}
		if created {
			c.changed("create", "topic="+topic, nil)
		}
		creates := c.creates(t, channel)
		ch, err := t.Channel(c.ctx, channel)
		if err != nil {
			return err
		}
		if creates {
			c.changed("create", "topic="+topic+" channel="+channel, nil)
		}
		c.form = formOf(cmd, set)
		if refused = c.subscribeAt(cmd, t, ch); refused == nil {
			refused = c.seekFrom(cmd, ch)
		}
		if refused != nil {
			return nil
		}
		subscribed, err := ch.SubscribeClient(c.ctx, node.ConsumerOptions{
			MsgTimeout: set.msgTimeout,
			SampleRate: set.sampleRate,
			Label:      c,
			Partition:  cmd.OnlyPartition(),
			Tag:        set.tag,

			MaxInFlightBytes: c.flight.most,
		}, (*sink)(c))
		k = &consumer{subscribed}
		return err
	})
	return k, refused, err
}

// consumer is the consumer of a connection behind one pointer, so that it can be read without a lock.
type consumer struct{ node.Consumer }

// creates reports whether a SUB is about to create the channel, for the audit. If the leaders do not answer in time, it
// returns false.
func (c *conn) creates(t *node.Topic, channel string) bool {
	ctx, cancel := context.WithTimeout(c.ctx, c.srv.settings().AskForChannel)
	defer cancel()
	return t.LacksChannel(ctx, channel)
}

// identify executes IDENTIFY. size is the command's length in the input.
func (c *conn) identify(body []byte, size int) *command.Fault {
	set, response, f := c.srv.opts.identify(body, *c.set.Load())
	if f != nil {
		return f
	}
	upgrade := set.tls || set.compression != compressNone
	if upgrade && c.stream != nil {
		return command.NewFault("E_INVALID cannot IDENTIFY in current state") // the connection has TLS or compression already
	}
	c.set.Store(&set)
	c.applyOutput(&set)
	c.parser.Heartbeats = set.heartbeat > 0
	c.startBeats(set.heartbeat)
	c.reply(frameResponse, string(response))
	if upgrade {
		return c.upgrade(&set, size)
	}
	return nil
}
