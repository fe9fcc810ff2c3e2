package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/server/web"
)

// A publisher that numbers its messages names itself in three headers of a message: in the JSON headers of a PUB_EXT or
// MPUB_EXT, in the headers of an HTTP request, or in the ext of a /pub_ext. POST /producer/open begins its epoch. Then
// the rules of node.Topic.SubmitNumbered hold: what is sent again is stored once. The headers are not stored with the
// message; the batch has the numbers.
//
// What publishers call an epoch is a tenure (node.Producer.Tenure) and the partition whose numbers the publisher
// counts, as in 1851163983872000007424-3. A message that belongs to another partition meanwhile, because the topic has
// got more of them, has numbers of the wrong partition: it is refused, and never taken for a repetition there.
const (
	producerHeader = "penstock-producer" // the producer's name, 1 to 255 bytes
	epochHeader    = "penstock-epoch"    // that /producer/open answered
	sequenceHeader = "penstock-sequence" // of the message; in a batch of its first one, and the others follow
)

// numbering is what a publisher says about a put.
type numbering struct {
	node.Numbered        // submitNumbered sets its Name
	name          []byte // of the producer, as the publisher says it
	of            int    // the partition that its epoch names, plus one; 0: none
}

// numberHeaders also are HTTP headers of a publish.
var numberHeaders = [...]string{producerHeader, epochHeader, sequenceHeader}

// Codes of the answers to publishers that number their messages. Nothing of the command was stored, and the connection
// goes on.
const (
	codeFenced          = "E_PRODUCER_FENCED"   // the epoch is an earlier one
	codeSequence        = "E_PRODUCER_SEQUENCE" // a gap or an overlap
	codeUnknownProducer = "E_PRODUCER_UNKNOWN"  // never opened in the partition, or forgotten there
	codeProducerOwner   = "E_PRODUCER_OWNER"    // the name belongs to another identity there
)

// producerCode returns the code of an error of the rules of producers, or "" for other errors.
func producerCode(err error) string {
	switch {
	case errors.Is(err, node.ErrFenced):
		return codeFenced
	case errors.Is(err, node.ErrSequence):
		return codeSequence
	case errors.Is(err, node.ErrUnknownProducer):
		return codeUnknownProducer
	case errors.Is(err, node.ErrProducerOwner):
		return codeProducerOwner
	}
	return ""
}

// numberOf returns the index of a header in numberHeaders, or -1.
func numberOf(name []byte) int {
	for i, number := range numberHeaders {
		if string(name) == number {
			return i
		}
	}
	return -1
}

func isNumber(h node.Header) bool { return numberOf(h.Key) >= 0 }

// cutNumbers takes the three headers out of headers, whose order it keeps and whose memory it uses, and puts their
// values into n. has reports whether there were any: then all three must be there, once. n.name is borrowed from
// headers.
func cutNumbers(headers []node.Header, n *numbering) (rest []node.Header, has bool, err error) {
	if !slices.ContainsFunc(headers, isNumber) {
		return headers, false, nil
	}
	var seen [len(numberHeaders)]bool
	rest = headers[:0]
	for _, h := range headers {
		i := numberOf(h.Key)
		if i < 0 {
			rest = append(rest, h)
			continue
		}
		if seen[i] {
			return nil, false, fmt.Errorf("%w: there are two headers %s", node.ErrHeaders, h.Key)
		}
		seen[i] = true
		switch numberHeaders[i] {
		case producerHeader:
			if n.name = h.Value; len(n.name) == 0 || len(n.name) > node.MaxProducerNameBytes {
				err = fmt.Errorf("%w: the name of a producer has %d bytes; it needs 1 to %d",
					node.ErrHeaders, len(n.name), node.MaxProducerNameBytes)
			}
		case epochHeader:
			n.Tenure, n.of, err = parseEpoch(h)
		case sequenceHeader:
			n.Sequence, err = parseNumber(h)
		}
		if err != nil {
			return nil, false, err
		}
	}
	if slices.Contains(seen[:], false) {
		return nil, false, fmt.Errorf("%w: a producer's message needs the three headers %s",
			node.ErrHeaders, strings.Join(numberHeaders[:], ", "))
	}
	return rest, true, nil
}

// epochText is an epoch as publishers are told it.
func epochText(tenure uint64, partition int) string { return fmt.Sprintf("%d-%d", tenure, partition) }

// parseEpoch is the reverse of epochText, where the partition is plus one; 0: the publisher has left it out, as it may.
func parseEpoch(h node.Header) (tenure uint64, of int, err error) {
	text, partition, named := strings.Cut(string(h.Value), "-")
	tenure, err = strconv.ParseUint(text, 10, 64)
	if err == nil && named {
		of, err = strconv.Atoi(partition)
		of++
	}
	if err != nil || of < 0 || named && (of == 0 || partition[0] == '+') {
		return 0, 0, fmt.Errorf("%w: %s is %q; it is what /producer/open has answered", node.ErrHeaders, h.Key, h.Value)
	}
	return tenure, of, nil
}

func parseNumber(h node.Header) (uint32, error) {
	n, err := strconv.ParseUint(string(h.Value), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: %s is %q; it is a number from 0 to 4294967295", node.ErrHeaders, h.Key, h.Value)
	}
	return uint32(n), nil
}

// cutAllNumbers is cutNumbers for the messages of one command, with the headers in lists. Those behind the first one
// may repeat the producer and its epoch, with the sequence that they have, or say nothing. It returns nil if there are
// no numbers, and otherwise those of the first message, in n if that is not nil.
func cutAllNumbers(lists [][]node.Header, n *numbering) (*numbering, error) {
	has := false
	for i := range lists {
		if !slices.ContainsFunc(lists[i], isNumber) {
			continue
		}
		own := n
		if i > 0 || n == nil {
			own = new(numbering)
		}
		rest, _, err := cutNumbers(lists[i], own)
		if err != nil {
			return nil, err
		}
		lists[i] = rest
		if i == 0 {
			n, has = own, true
			continue
		}
		if !has || string(own.name) != string(n.name) || own.Tenure != n.Tenure || own.of != n.of ||
			own.Sequence != n.Sequence+uint32(i) {
			return nil, fmt.Errorf("%w: message %d of the batch does not follow the first one, by its producer, epoch and "+
				"sequence", node.ErrHeaders, i)
		}
	}
	if !has {
		return nil, nil
	}
	return n, nil
}

// partitionOf returns the partition for a put of a producer that names none. The producer's numbers are of one
// partition, so the publisher must be able to tell which one it is: that of the messages' key, or else that of its own
// name, as if the name were a key. The messages of a put must agree.
func partitionOf(t *node.Topic, lists [][]node.Header, n *numbering) (int, error) {
	at := -1
	for _, headers := range lists {
		i := slices.IndexFunc(headers, func(h node.Header) bool { return string(h.Key) == node.KeyHeader })
		if i < 0 {
			continue
		}
		of := batch.PartitionOf(headers[i].Value, t.Partitions())
		if at >= 0 && of != at {
			return 0, node.ErrBatchKeys
		}
		at = of
	}
	if at < 0 {
		at = batch.PartitionOf(n.name, t.Partitions())
	}
	return at, nil
}

// submitNumbered submits a put of a client with this owner to this partition, whose numbers it must have.
func submitNumbered(t *node.Topic, at int, p *node.Put, n *numbering, owner string) error {
	n.Name = node.OwnedName(owner, n.name)
	if n.of != 0 && n.of != at+1 && at < t.Partitions() {
		return fmt.Errorf("%w: the message belongs to partition %d, and the epoch is of partition %d; nothing was stored: "+
			"open the name in that partition, with this epoch, and use the epoch and the numbers that are answered",
			node.ErrUnknownProducer, at, n.of-1)
	}
	return t.SubmitNumbered(at, p, &n.Numbered)
}

// takeNumbers makes the put of p one of a producer if its messages have the headers of one.
func (p *pending) takeNumbers() *fault {
	n, err := cutAllNumbers(p.lists, p.numbers)
	if err != nil {
		return faultf("%s %s the header is refused: %v", codeBadExt, p.verb, err)
	}
	if n != nil {
		p.numbers, p.numbered = n, true
	}
	return nil
}

// sendNumbered submits a put of a producer.
func (p *pending) sendNumbered(t *node.Topic) error {
	at := p.partition
	if !p.addressed {
		var err error
		if at, err = partitionOf(t, p.lists, p.numbers); err != nil {
			return err
		}
	}
	return submitNumbered(t, at, &p.put, p.numbers, p.c.owner())
}

// requestNumbers appends the headers of a publish over HTTP that are the three headers to those of the message.
func requestNumbers(r *http.Request, headers []node.Header) []node.Header {
	for _, name := range numberHeaders {
		for _, v := range r.Header.Values(name) {
			headers = append(headers, node.Header{Key: []byte(name), Value: []byte(v)})
		}
	}
	return headers
}

// partitionParam returns the partition that the query names, or -1.
func partitionParam(q url.Values, invalid string) (int, error) {
	text := q.Get("partition")
	if text == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < -1 {
		return 0, web.Fail(400, invalid)
	}
	return n, nil
}

// submitAndWait submits a put with submit, and waits for the answer, because the engine reads the messages until then.
func submitAndWait(p *node.Put, submit func() error) (node.ID, error) {
	answered := make(chan struct{})
	p.Alone, p.Done = true, func(*node.Put) { close(answered) }
	if err := submit(); err != nil {
		return 0, err
	}
	<-answered
	return p.First, p.Err
}

// putNumbered stores the messages of an HTTP request of a producer, which all have these headers, in this partition;
// -1: see partitionOf.
func (s *Server) putNumbered(
	r *http.Request, t *node.Topic, at int, p *node.Put, headers []node.Header, n *numbering,
) (node.ID, error) {
	owner, err := s.ownerOf(r)
	if err != nil {
		return 0, err
	}
	if len(headers) > 0 {
		p.Headers = slices.Repeat([][]node.Header{headers}, len(p.Messages))
	}
	if at < 0 {
		if at, err = partitionOf(t, p.Headers, n); err != nil {
			return 0, err
		}
	}
	return submitAndWait(p, func() error { return submitNumbered(t, at, p, n, owner) })
}

// numberedFailure maps the errors of the rules of producers to an HTTP status.
func numberedFailure(err error) error {
	switch code := producerCode(err); {
	case code != "":
		return web.Fail(http.StatusConflict, strings.TrimPrefix(code, "E_")+": "+strings.TrimPrefix(err.Error(), "engine: "))
	case errors.Is(err, node.ErrNoPartition), errors.Is(err, node.ErrProducerName),
		errors.Is(err, node.ErrProducerLevel), errors.Is(err, node.ErrProducerTenure):
		return web.Fail(400, err.Error())
	case errors.Is(err, node.ErrTooManyProducers):
		return web.Fail(http.StatusInsufficientStorage, err.Error())
	}
	return err
}

// producerOpened is the answer to /producer/open.
type producerOpened struct {
	Partition int    `json:"partition"`
	Epoch     string `json:"epoch"`
	Sequence  uint32 `json:"sequence"` // of the producer's next message in this partition
}

// serveProducerOpen opens a producer in one partition of a topic: the one that the query names, or that of the key that
// it names, or that of the producer's name. The producer's earlier epoch ends. If the query names an epoch, that one
// goes on: it is refused if a later one has come to the partition.
func (s *Server) serveProducerOpen(r *http.Request, q url.Values) (any, error) {
	name, err := web.TopicName(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	n := &numbering{name: []byte(q.Get("producer"))}
	at, err := partitionParam(q, "INVALID_PARTITION")
	if err != nil {
		return nil, err
	}
	if len(n.name) == 0 {
		return nil, web.Fail(400, "MISSING_ARG_PRODUCER")
	}
	if len(n.name) > node.MaxProducerNameBytes {
		return nil, numberedFailure(node.ErrProducerName)
	}
	owner, err := s.ownerOf(r)
	if err != nil {
		return nil, err
	}
	owned := node.OwnedName(owner, string(n.name))
	if q.Has("epoch") {
		if n.Tenure, _, err = parseEpoch(node.Header{Key: []byte("epoch"), Value: []byte(q.Get("epoch"))}); err != nil {
			return nil, web.Fail(400, "INVALID_EPOCH")
		}
	}
	var lists [][]node.Header
	if key := q.Get("key"); key != "" {
		lists = [][]node.Header{{{Key: []byte(node.KeyHeader), Value: []byte(key)}}}
	}
	var opened producerOpened
	err = retryDeleted(r.Context(), func() error {
		t, err := s.topicFor(r, name)
		if err != nil {
			return err
		}
		if opened.Partition = at; at < 0 {
			opened.Partition, _ = partitionOf(t, lists, n) // one key agrees with itself
		}
		var p node.Producer
		if n.Tenure != 0 {
			p, err = t.HoldNamed(r.Context(), opened.Partition, owned, n.Tenure)
		} else {
			p, err = t.OpenNamed(r.Context(), opened.Partition, owned)
		}
		opened.Epoch, opened.Sequence = epochText(p.Tenure, opened.Partition), p.Sequence
		return err
	})
	if err != nil {
		return nil, numberedFailure(err)
	}
	return opened, nil
}
