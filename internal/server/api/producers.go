package api

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/internal/server/publish"
	"penstock/internal/server/web"
)

// ProducerRows is the answer to /topic/producers: a row for each producer with a name and each partition that knows it,
// sorted by name.
type ProducerRows struct {
	Producers []ProducerRow `json:"producers"`
	Nameless  int           `json:"without_name"` // producers that have none
	More      bool          `json:"more"`         // there are more rows than the answer may have
}

// ProducerRow is what one partition knows of a producer.
type ProducerRow struct {
	Producer  string    `json:"producer"`
	Owner     string    `json:"owner"` // its token; empty: it is everybody's
	Partition uint32    `json:"partition"`
	Epoch     uint32    `json:"epoch"`    // how often it was opened there
	Sequence  uint32    `json:"sequence"` // of its next message
	Used      time.Time `json:"used"`     // when it was used last, by the times of the log
}

// unknownOwner is the owner of a name whose token is not in the node's file.
const unknownOwner = "unknown token"

// serveProducers lists the producers of a topic, or one of them. It needs the right to administer the whole topic: it
// says which tokens publish.
func (s *Service) serveProducers(t *node.Topic, r *http.Request, q url.Values) (any, error) {
	list, err := t.Producers(r.Context(), q.Get("producer"))
	if err != nil {
		return nil, err
	}
	owners := map[string]string{"": ""}
	for _, name := range s.auth.Names() {
		owners[node.ProducerOwner(name)] = name
	}
	out := ProducerRows{Producers: make([]ProducerRow, 0, len(list.Producers)), Nameless: list.Nameless, More: list.More}
	for i := range list.Producers {
		p := &list.Producers[i]
		owner, known := owners[p.Owner]
		if !known {
			owner = unknownOwner
		}
		out.Producers = append(out.Producers, ProducerRow{
			Producer: p.Name, Owner: owner, Partition: p.Partition, Epoch: p.Epoch, Sequence: p.Sequence, Used: p.Used,
		})
	}
	return out, nil
}

// ProducerRemoved is the answer to /producer/remove.
type ProducerRemoved struct {
	Removed int `json:"removed"` // in so many partitions
}

func serveProducerRemove(t *node.Topic, r *http.Request, q url.Values) (any, error) {
	name := q.Get("producer")
	if name == "" {
		return nil, web.Fail(400, "MISSING_ARG_PRODUCER")
	}
	n, err := t.RemoveProducer(r.Context(), name)
	return ProducerRemoved{n}, err
}

// requestNumbers appends the headers of a publish over HTTP that are the three headers to those of the message.
func requestNumbers(r *http.Request, headers []node.Header) []node.Header {
	for _, name := range publish.NumberHeaders {
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
// -1: see NumberedPartition.
func (s *Service) putNumbered(
	r *http.Request, t *node.Topic, at int, p *node.Put, headers []node.Header, n *publish.Numbers,
) (node.ID, error) {
	owner, err := s.ownerOf(r)
	if err != nil {
		return 0, err
	}
	if len(headers) > 0 {
		p.Headers = slices.Repeat([][]node.Header{headers}, len(p.Messages))
	}
	if at < 0 {
		if at, err = publish.NumberedPartition(t, p.Headers, n); err != nil {
			return 0, err
		}
	}
	return submitAndWait(p, func() error { return publish.Submit(t, at, p, n, owner) })
}

// numberedFailure maps the errors of the rules of producers to an HTTP status.
func numberedFailure(err error) error {
	switch code := publish.ProducerCode(err); {
	case code != "":
		return web.Fail(http.StatusConflict, strings.TrimPrefix(code, "E_")+": "+strings.TrimPrefix(err.Error(), "engine: "))
	case errors.Is(err, errs.ErrNoPartition), errors.Is(err, errs.ErrProducerName),
		errors.Is(err, errs.ErrProducerLevel), errors.Is(err, errs.ErrProducerTenure):
		return web.Fail(400, err.Error())
	case errors.Is(err, errs.ErrTooManyProducers):
		return web.Fail(http.StatusInsufficientStorage, err.Error())
	}
	return err
}

// ProducerOpened is the answer to /producer/open.
type ProducerOpened struct {
	Partition int    `json:"partition"`
	Epoch     string `json:"epoch"`
	Sequence  uint32 `json:"sequence"` // of the producer's next message in this partition
}

// serveProducerOpen opens a producer in one partition of a topic: the one that the query names, or that of the key that
// it names, or that of the producer's name. The producer's earlier epoch ends. If the query names an epoch, that one
// goes on: it is refused if a later one has come to the partition.
func (s *Service) serveProducerOpen(r *http.Request, q url.Values) (any, error) {
	name, err := web.TopicName(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	n := &publish.Numbers{Producer: []byte(q.Get("producer"))}
	at, err := partitionParam(q, "INVALID_PARTITION")
	if err != nil {
		return nil, err
	}
	if len(n.Producer) == 0 {
		return nil, web.Fail(400, "MISSING_ARG_PRODUCER")
	}
	if len(n.Producer) > fold.MaxProducerNameBytes {
		return nil, numberedFailure(errs.ErrProducerName)
	}
	owner, err := s.ownerOf(r)
	if err != nil {
		return nil, err
	}
	owned := node.OwnedName(owner, string(n.Producer))
	if q.Has("epoch") {
		epoch := node.Header{Key: []byte("epoch"), Value: []byte(q.Get("epoch"))}
		if n.Tenure, _, err = publish.ParseEpoch(epoch); err != nil {
			return nil, web.Fail(400, "INVALID_EPOCH")
		}
	}
	var lists [][]node.Header
	if key := q.Get("key"); key != "" {
		lists = [][]node.Header{{{Key: []byte(message.KeyHeader), Value: []byte(key)}}}
	}
	var opened ProducerOpened
	err = publish.RetryDeleted(r.Context(), func() error {
		t, err := s.topicFor(r, name)
		if err != nil {
			return err
		}
		if opened.Partition = at; at < 0 {
			opened.Partition, _ = publish.NumberedPartition(t, lists, n) // one key agrees with itself
		}
		var p node.Producer
		if n.Tenure != 0 {
			p, err = t.HoldNamed(r.Context(), opened.Partition, owned, n.Tenure)
		} else {
			p, err = t.OpenNamed(r.Context(), opened.Partition, owned)
		}
		opened.Epoch, opened.Sequence = publish.EpochText(p.Tenure, opened.Partition), p.Sequence
		return err
	})
	if err != nil {
		return nil, numberedFailure(err)
	}
	return opened, nil
}
