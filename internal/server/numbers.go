package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"penstock/batch"
	"penstock/internal/node"
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

// keyPartition returns the partition to which the keys in the headers of messages belong, as for messages that are
// published in other ways. It returns -1 if there is no key, and if the keys belong to different partitions: a batch is
// stored whole or not at all, which only one partition can promise.
func keyPartition(t *node.Topic, lists [][]node.Header) int {
	at := -1
	for _, headers := range lists {
		key := keyOf(headers)
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

// keyOf returns the value of the header that holds a message's key, or nil.
func keyOf(headers []node.Header) []byte {
	for i := range headers {
		if string(headers[i].Key) == node.KeyHeader {
			return headers[i].Value
		}
	}
	return nil
}
