package native

import (
	"penstock/internal/node/errs"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// phase is where a connection stands.
type phase uint8

const (
	unproven phase = iota // its client has to send Auth
	known
	leaving // it was sent a GoAway
)

// ruling says what becomes of a frame.
type ruling uint8

const (
	serve  ruling = iota
	refuse        // it is answered with decision.status, and nothing is done
	end           // the connection ends
)

// decision is a ruling with its reasons.
type decision struct {
	ruling ruling
	status netproto.Status // of refuse
	text   string          // of refuse and end, for people
}

// request is a type of frame that a client sends, and this version serves.
type request struct {
	name   string        // in metrics and the audit
	answer netproto.Type // has the request's status; 0: there is no answer
}

// requests lists what clients may send. Any other type of clients is one of a later version.
var requests = map[netproto.Type]request{
	wire.TypeAuth:         {"auth", wire.TypeAuthAck},
	wire.TypeMetadata:     {"metadata", wire.TypeMetadataReply},
	wire.TypeOpenProducer: {"open_producer", wire.TypeProducer},
	wire.TypeProduce:      {"produce", wire.TypeProduced},
	wire.TypeRead:         {"read", wire.TypeReadEnd},
	wire.TypeReadCredit:   {"read_credit", 0},
	wire.TypeReadEnd:      {"read_end", 0},

	wire.TypeSubscribe:     {"subscribe", wire.TypeSubscribed},
	wire.TypeCredit:        {"credit", 0},
	wire.TypeFinish:        {"finish", 0},
	wire.TypeFinishThrough: {"finish_through", 0},
	wire.TypeRequeue:       {"requeue", 0},
	wire.TypeTouch:         {"touch", 0},
	wire.TypeSync:          {"sync", wire.TypeSynced},
	wire.TypeSubscribeEnd:  {"subscribe_end", 0},
	wire.TypeRecall:        {"recall", 0},
}

// answers lists what only nodes send.
var answers = map[netproto.Type]bool{
	wire.TypeAuthAck: true, wire.TypeMetadataReply: true, wire.TypeProducer: true, wire.TypeProduced: true,
	wire.TypeRecords: true, wire.TypeGoAway: true,
	wire.TypeSubscribed: true, wire.TypeDeliver: true, wire.TypeRefused: true, wire.TypeSynced: true,
	wire.TypeDeliverOrdered: true,
}

const firstClientType = wire.TypeAuth

// decide says what becomes of a frame of a client. It looks at the header only.
func decide(p phase, h *netproto.Header) decision {
	r, isRequest := requests[h.Type]
	switch {
	case h.Type < firstClientType || answers[h.Type]:
		return decision{ruling: end, text: "a client does not send a " + typeName(h.Type)}
	case h.Status != netproto.StatusOK:
		return decision{ruling: end, text: "a request has no status"}
	case !isRequest:
		return decision{refuse, netproto.StatusRejected, "this version does not know a " + typeName(h.Type)}
	case h.Type == wire.TypeProduce && (h.Flags&netproto.FlagSelfChecked == 0 || h.HeadBytes < wire.ProduceBytes):
		return decision{ruling: end, text: "a produce is self-checked, and has a head"}
	case h.Type != wire.TypeProduce && h.Flags&netproto.FlagSelfChecked != 0:
		return decision{ruling: end, text: "a " + typeName(h.Type) + " is not self-checked"}
	case r.answer == 0 && p == unproven:
		return decision{ruling: end, text: "a " + typeName(h.Type) + " without a reader or a subscription"}
	case r.answer == 0:
		return decision{ruling: serve}
	case p == unproven && h.Type != wire.TypeAuth:
		return decision{refuse, netproto.StatusUnproven, "this node demands an Auth first"}
	case p == leaving && h.Type != wire.TypeSync: // what is in flight may still be finished
		return decision{refuse, netproto.StatusClosed, "this node stops; connect to another one"}
	}
	return decision{ruling: serve}
}

// answerOf returns the type that answers a request.
func answerOf(t netproto.Type) netproto.Type {
	if r, ok := requests[t]; ok {
		return r.answer
	}
	return netproto.TypeError
}

// load is what a connection has taken of its limits.
type load struct{ count, bytes int }

// limits bound a load. A single request always fits.
type limits struct{ count, bytes int }

// beyond returns the limit that a further request of n bytes would exceed, or nil if there is room for it.
func (l load) beyond(n int, most limits) *errs.LimitError {
	switch {
	case l.count == 0:
		return nil
	case l.count >= most.count:
		return &errs.LimitError{
			What: "with this one the number of the connection's requests that wait for an answer", Value: l.count + 1,
			Most: most.count,
		}
	case l.bytes+n > most.bytes:
		return &errs.LimitError{
			What:  "with this one the size in bytes of the connection's requests that wait for an answer",
			Value: l.bytes + n, Most: most.bytes, Setting: "max-conn-in-flight-bytes",
		}
	}
	return nil
}

// later says that a request is refused because of what is open or waits just now.
func later(l *errs.LimitError) string { return l.Text() + "; repeat it later" }
