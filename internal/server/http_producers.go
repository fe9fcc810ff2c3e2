package server

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"penstock/internal/node"
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
func (s *Server) serveProducers(r *http.Request, q url.Values) (any, error) {
	t, err := s.findTopic(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	list, err := t.Producers(r.Context(), q.Get("producer"))
	if err != nil {
		return nil, channelFailure(err)
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

// producerRemoved is the answer to /producer/remove.
type producerRemoved struct {
	Removed int `json:"removed"` // in so many partitions
}

func (s *Server) serveProducerRemove(r *http.Request, q url.Values) (any, error) {
	t, err := s.findTopic(q, "INVALID_TOPIC")
	if err != nil {
		return nil, err
	}
	name := q.Get("producer")
	if name == "" {
		return nil, web.Fail(400, "MISSING_ARG_PRODUCER")
	}
	n, err := t.RemoveProducer(r.Context(), name)
	switch {
	case errors.Is(err, node.ErrNoProducer):
		return nil, web.Fail(404, err.Error())
	case errors.Is(err, node.ErrProducerLevel):
		return nil, web.Fail(400, err.Error())
	case err != nil:
		return nil, channelFailure(err)
	}
	return producerRemoved{n}, nil
}
