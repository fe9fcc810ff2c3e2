package nsq

import (
	"encoding/binary"
	"strconv"

	"penstock/internal/node"
	"penstock/internal/server/nsq/command"
	"penstock/internal/server/publish"
)

// Parts of a message in youzan's form.
const (
	extVersionNone   = 0
	extVersionJSON   = 4
	extLengthBytes   = 2
	traceIDBytes     = 8
	messagePlaceSize = 8 + 4 // offset, size
)

// publishExt makes one Put from a PUB_EXT, PUB_TRACE, MPUB_EXT or MPUB_TRACE, or adds a PUB_EXT to the current run.
func (c *conn) publishExt(cmd *command.Command, size int) *command.Fault {
	if c.joinsRun(cmd) && c.addExt(cmd, size) {
		return nil
	}
	c.submit()
	if f := c.mayPublish(cmd); f != nil {
		return f
	}
	p := newPending(c, cmd.Verb)
	p.count, p.bytes = 1, size
	p.Addressed, p.Partition = cmd.Addressed, cmd.Partition
	if cmd.Verb.Batches() {
		p.put.Messages = publish.Messages(p.put.Messages, cmd.Body)
	} else {
		p.put.Messages = append(p.put.Messages, cmd.Body)
	}
	for i, m := range p.put.Messages {
		body, headers, f := p.unwrap(m)
		if f != nil {
			p.free()
			return f
		}
		p.put.Messages[i], p.lists = body, append(p.lists, headers)
	}
	if f := p.takeNumbers(); f != nil {
		p.free()
		return f
	}
	p.put.Headers = p.lists
	t, err := c.target(cmd.Topic)
	if err != nil {
		text := publishRefused(p, err)
		p.free()
		return command.NewFault(text)
	}
	p.to, p.at = t, publish.KeyPartition(t.topic, p.lists)
	p.buf = c.in.buf
	p.buf.retain()
	c.run = p
	return nil
}

// joinsRun reports whether a PUB_EXT may be added to the current run. The run must have room, and consist of PUB_EXTs
// to the same topic and partition without a trace id and without a producer, each of whose PUB_EXTs is a Put of its
// own.
func (c *conn) joinsRun(cmd *command.Command) bool {
	r := c.run
	return r != nil && cmd.Verb == command.VerbPubExt && r.verb == command.VerbPubExt && !r.traced && !r.numbered &&
		r.to.name == string(cmd.Topic) && r.Addressed == cmd.Addressed && r.Partition == cmd.Partition &&
		r.count < maxRunCount && r.bytes < maxRunBytes
}

// addExt adds a PUB_EXT to the run. The messages of a run share the outcome of one Put. So addExt returns false, and
// leaves the run as it was, for a message that might be refused individually, and for one with a trace id, whose answer
// says where it is stored.
func (c *conn) addExt(cmd *command.Command, size int) bool {
	r, n := c.run, extBytes(cmd.Body)
	if n == 0 {
		return false
	}
	all, _, traced, ok := publish.AppendPlainExt(r.headers, cmd.Body[extLengthBytes:n])
	own := all[len(r.headers):len(all):len(all)]
	if !ok || traced || c.srv.engine.CheckHeaders(own) != nil {
		return false
	}
	if key := publish.KeyOf(own); (len(key) != 0 || r.at >= 0) && (len(key) == 0 || r.to.topic.PartitionFor(key) != r.at) {
		return false
	}
	r.headers, r.lists = all, append(r.lists, own)
	r.put.Messages, r.put.Headers = append(r.put.Messages, cmd.Body[n:]), r.lists
	r.count++
	r.bytes += size
	return true
}

// extBytes returns the length of the ext with its length prefix at the start of m, or 0 if m has no body after it.
func extBytes(m []byte) int {
	if len(m) <= extLengthBytes || len(m) <= extLengthBytes+int(binary.BigEndian.Uint16(m)) {
		return 0
	}
	return extLengthBytes + int(binary.BigEndian.Uint16(m))
}

// unwrap splits a message into its body and the headers in front of it, a trace id or an ext. It notes a trace id in p,
// since the answer must then say where the message is stored.
func (p *pending) unwrap(m []byte) (body []byte, headers []node.Header, f *command.Fault) {
	if p.verb == command.VerbPubTrace || p.verb == command.VerbMpubTrace {
		if len(m) <= traceIDBytes {
			return nil, nil, command.Faultf("E_BAD_BODY %s invalid body size %d: it begins with a trace id", p.verb, len(m))
		}
		p.traced = true
		trace := binary.BigEndian.Uint64(m)
		if p.verb == command.VerbPubTrace {
			p.trace = trace
		}
		if trace != 0 {
			headers = []node.Header{{Key: []byte(publish.ExtTraceID), Value: strconv.AppendUint(nil, trace, 10)}}
		}
		return m[traceIDBytes:], headers, nil
	}
	n := extBytes(m)
	if n == 0 {
		return nil, nil, command.Faultf("E_BAD_BODY %s invalid body size %d: it begins with its headers", p.verb, len(m))
	}
	all, trace, traced, err := publish.AppendExtHeaders(p.headers, m[extLengthBytes:n])
	if err != nil {
		return nil, nil, command.Faultf("%s %s the header is refused: %v", publish.CodeBadExt, p.verb, err)
	}
	if p.verb == command.VerbPubExt {
		p.trace, p.traced = trace, traced
	}
	headers = all[len(p.headers):len(all):len(all)]
	p.headers = all
	return m[n:], headers, nil
}

// send submits the put to the engine.
func (p *pending) send(t *node.Topic) error {
	switch {
	case p.numbered:
		return p.sendNumbered(t)
	case p.Addressed:
		return t.SubmitTo(p.Partition, &p.put)
	case p.at >= 0: // the topic may have been deleted and created again since
		if at := publish.KeyPartition(t, p.lists); at >= 0 {
			return t.SubmitTo(at, &p.put)
		}
	}
	return t.Submit(&p.put)
}

// tracedFrame is the answer to a Put with a trace id: OK, the id of its first message, the trace id, and the message's
// place and size. Both are counted in messages here and in bytes by youzan's nsqd. In either case their sum is the
// place of the next message. B96
func (p *pending) tracedFrame() []byte {
	b := append(make([]byte, 0, 64), "OK"...)
	b = binary.BigEndian.AppendUint64(b, uint64(p.put.First))
	b = binary.BigEndian.AppendUint64(b, p.trace)
	b = binary.BigEndian.AppendUint64(b, uint64(p.put.First.MsgID()))
	b = binary.BigEndian.AppendUint32(b, uint32(len(p.put.Messages)))
	return appendFrame(nil, frameResponse, string(b))
}

// beyondNSQ reports whether only a client of youzan's can have sent the command.
func (p *pending) beyondNSQ() bool { return p.Addressed || p.verb.Plain() != p.verb }

// publishRefused returns the error frame for a put that failed, or whose outcome is unknown.
func publishRefused(p *pending, err error) string {
	if code := publish.ProducerCode(err); code != "" {
		return code + " " + p.verb.String() + " failed " + err.Error()
	}
	if code := publish.YouzanCode(err); code != "" && p.beyondNSQ() {
		return code + " " + p.verb.String() + " failed " + err.Error()
	}
	return publishFailed(p.verb.Plain(), err)
}

// survives reports whether the connection continues after the error. youzan's clients then use another node for the
// partition, but keep this connection for other partitions. What is wrong with a producer's numbers concerns nobody
// else who publishes over this connection.
func (p *pending) survives(err error) bool {
	if publish.ProducerCode(err) != "" {
		return true
	}
	code := publish.YouzanCode(err)
	return p.beyondNSQ() && (code == publish.CodeNotLeader || code == publish.CodeNotWritable)
}

// maxKeptExtBytes bounds the buffer for an ext that an output keeps for the next message.
const maxKeptExtBytes = 4 << 10

// appendFormed adds a message frame in youzan's form, and reports whether there is room for another one. Like
// appendMessage it is called with Channel.mu or remote.Consumer.mu held.
func (o *output) appendFormed(d *node.Delivery, form *messageForm) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ext []byte
	if form.ext {
		if ext = publish.AppendExt(o.ext[:0], d.Headers); len(ext) > publish.MaxExtBytes {
			ext = append(ext[:0], "{}"...) // too long with JSON's escapes, although within the engine's limit
		}
		if cap(ext) <= maxKeptExtBytes {
			o.ext = ext
		}
	}
	size := messageHeaderBytes + len(d.Body)
	if form.ext {
		size++
	}
	if len(ext) != 0 {
		size += extLengthBytes + len(ext)
	}
	if form.detail {
		size += messagePlaceSize
	}
	if !o.space(frameHeaderBytes + size) {
		return false
	}
	from := len(o.next.p)
	p := binary.BigEndian.AppendUint32(o.next.p, uint32(4+size))
	p = binary.BigEndian.AppendUint32(p, frameMessage)
	p = binary.BigEndian.AppendUint64(p, uint64(d.Timestamp))
	p = binary.BigEndian.AppendUint16(p, d.Attempts)
	p = binary.BigEndian.AppendUint64(p, uint64(d.ID))
	p = binary.BigEndian.AppendUint64(p, publish.TraceOf(d.Headers))
	switch {
	case len(ext) != 0:
		p = append(p, extVersionJSON)
		p = binary.BigEndian.AppendUint16(p, uint16(len(ext)))
		p = append(p, ext...)
	case form.ext:
		p = append(p, extVersionNone)
	}
	if form.detail {
		p = binary.BigEndian.AppendUint64(p, uint64(d.ID.MsgID()))
		p = binary.BigEndian.AppendUint32(p, 1)
	}
	o.next.p = append(p, d.Body...)
	o.holdLast(from, d)
	o.full = o.full || o.unsent >= o.bound
	return !o.full
}

// takeNumbers makes the put of p one of a producer if its messages have the headers of one.
func (p *pending) takeNumbers() *command.Fault {
	n, err := publish.CutAllNumbers(p.lists, p.numbers)
	if err != nil {
		return command.Faultf("%s %s the header is refused: %v", publish.CodeBadExt, p.verb, err)
	}
	if n != nil {
		p.numbers, p.numbered = n, true
	}
	return nil
}

// sendNumbered submits a put of a producer.
func (p *pending) sendNumbered(t *node.Topic) error {
	at := p.Partition
	if !p.Addressed {
		var err error
		if at, err = publish.NumberedPartition(t, p.lists, p.numbers); err != nil {
			return err
		}
	}
	return publish.Submit(t, at, &p.put, p.numbers, p.c.owner())
}
