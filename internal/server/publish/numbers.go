package publish

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
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

// Numbers is what a publisher says about a put.
type Numbers struct {
	node.Numbered        // Submit sets its Name
	Producer      []byte // of the producer, as the publisher says it
	of            int    // the partition that its epoch names, plus one; 0: none
}

// NumberHeaders also are HTTP headers of a publish.
var NumberHeaders = [...]string{producerHeader, epochHeader, sequenceHeader}

// numberOf returns the index of a header in NumberHeaders, or -1.
func numberOf(name []byte) int {
	for i, number := range NumberHeaders {
		if string(name) == number {
			return i
		}
	}
	return -1
}

func isNumber(h node.Header) bool { return numberOf(h.Key) >= 0 }

// CutNumbers takes the three headers out of headers, whose order it keeps and whose memory it uses, and puts their
// values into n. has reports whether there were any: then all three must be there, once. n.Producer is borrowed
// from headers.
func CutNumbers(headers []node.Header, n *Numbers) (rest []node.Header, has bool, err error) {
	if !slices.ContainsFunc(headers, isNumber) {
		return headers, false, nil
	}
	var seen [len(NumberHeaders)]bool
	rest = headers[:0]
	for _, h := range headers {
		i := numberOf(h.Key)
		if i < 0 {
			rest = append(rest, h)
			continue
		}
		if seen[i] {
			return nil, false, fmt.Errorf("%w: there are two headers %s", errs.ErrHeaders, h.Key)
		}
		seen[i] = true
		switch NumberHeaders[i] {
		case producerHeader:
			if n.Producer = h.Value; len(n.Producer) == 0 || len(n.Producer) > fold.MaxProducerNameBytes {
				err = fmt.Errorf("%w: the name of a producer has %d bytes; it needs 1 to %d",
					errs.ErrHeaders, len(n.Producer), fold.MaxProducerNameBytes)
			}
		case epochHeader:
			n.Tenure, n.of, err = ParseEpoch(h)
		case sequenceHeader:
			n.Sequence, err = parseNumber(h)
		}
		if err != nil {
			return nil, false, err
		}
	}
	if slices.Contains(seen[:], false) {
		return nil, false, fmt.Errorf("%w: a producer's message needs the three headers %s",
			errs.ErrHeaders, strings.Join(NumberHeaders[:], ", "))
	}
	return rest, true, nil
}

// EpochText is an epoch as publishers are told it.
func EpochText(tenure uint64, partition int) string { return fmt.Sprintf("%d-%d", tenure, partition) }

// ParseEpoch is the reverse of EpochText, where the partition is plus one; 0: the publisher has left it out, as it may.
func ParseEpoch(h node.Header) (tenure uint64, of int, err error) {
	text, partition, named := strings.Cut(string(h.Value), "-")
	tenure, err = strconv.ParseUint(text, 10, 64)
	if err == nil && named {
		of, err = strconv.Atoi(partition)
		of++
	}
	if err != nil || of < 0 || named && (of == 0 || partition[0] == '+') {
		return 0, 0, fmt.Errorf("%w: %s is %q; it is what /producer/open has answered", errs.ErrHeaders, h.Key, h.Value)
	}
	return tenure, of, nil
}

func parseNumber(h node.Header) (uint32, error) {
	n, err := strconv.ParseUint(string(h.Value), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: %s is %q; it is a number from 0 to 4294967295", errs.ErrHeaders, h.Key, h.Value)
	}
	return uint32(n), nil
}

// CutAllNumbers removes the numbers from the headers of all messages of one command, as CutNumbers does for one
// message. Messages behind the first one may repeat the producer and its epoch, with their own sequence, or name none.
// It returns the numbers of the first message, in n unless that is nil, or nil if there are none.
func CutAllNumbers(lists [][]node.Header, n *Numbers) (*Numbers, error) {
	has := false
	for i := range lists {
		if !slices.ContainsFunc(lists[i], isNumber) {
			continue
		}
		own := n
		if i > 0 || n == nil {
			own = new(Numbers)
		}
		rest, _, err := CutNumbers(lists[i], own)
		if err != nil {
			return nil, err
		}
		lists[i] = rest
		if i == 0 {
			n, has = own, true
			continue
		}
		if !has || string(own.Producer) != string(n.Producer) || own.Tenure != n.Tenure || own.of != n.of ||
			own.Sequence != n.Sequence+uint32(i) {
			return nil, fmt.Errorf("%w: message %d of the batch does not follow the first one, by its producer, epoch and "+
				"sequence", errs.ErrHeaders, i)
		}
	}
	if !has {
		return nil, nil
	}
	return n, nil
}

// NumberedPartition returns the partition for a put of a producer that names none. The producer's numbers are of one
// partition, so the publisher must be able to tell which one it is: that of the messages' key, or else that of its own
// name, as if the name were a key. The messages of a put must agree.
func NumberedPartition(t *node.Topic, lists [][]node.Header, n *Numbers) (int, error) {
	at := -1
	for _, headers := range lists {
		i := slices.IndexFunc(headers, func(h node.Header) bool { return string(h.Key) == message.KeyHeader })
		if i < 0 {
			continue
		}
		of := batch.PartitionOf(headers[i].Value, t.Partitions())
		if at >= 0 && of != at {
			return 0, errs.ErrBatchKeys
		}
		at = of
	}
	if at < 0 {
		at = batch.PartitionOf(n.Producer, t.Partitions())
	}
	return at, nil
}

// Submit submits a put of a client with this owner to this partition, whose numbers it must have.
func Submit(t *node.Topic, at int, p *node.Put, n *Numbers, owner string) error {
	n.Name = node.OwnedName(owner, n.Producer)
	if n.of != 0 && n.of != at+1 && at < t.Partitions() {
		return fmt.Errorf("%w: the message belongs to partition %d, and the epoch is of partition %d; nothing was stored: "+
			"open the name in that partition, with this epoch, and use the epoch and the numbers that are answered",
			errs.ErrUnknownProducer, at, n.of-1)
	}
	return t.SubmitNumbered(at, p, &n.Numbered)
}

// KeyPartition returns the partition to which the keys in the headers of messages belong, as for messages that are
// published in other ways. It returns -1 if there is no key, and if the keys belong to different partitions: a batch is
// stored whole or not at all, which only one partition can promise.
func KeyPartition(t *node.Topic, lists [][]node.Header) int {
	at := -1
	for _, headers := range lists {
		key := KeyOf(headers)
		if len(key) == 0 {
			continue
		}
		of := t.PartitionFor(key)
		if at >= 0 && of != at {
			return -1
		}
		at = of
	}
	return at
}

// KeyOf returns the value of the header that holds a message's key, or nil.
func KeyOf(headers []node.Header) []byte {
	for i := range headers {
		if string(headers[i].Key) == message.KeyHeader {
			return headers[i].Value
		}
	}
	return nil
}
