package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"penstock/cmd/engine/internal/client"
	"penstock/internal/clip"
	"penstock/internal/cluster/admin"
	"penstock/internal/node/health"
	"penstock/internal/server/api"
)

// nodeStats is the part of a node's /stats that is shown.
type nodeStats struct {
	Topics  []topicNumbers `json:"topics"`
	Storage struct {
		Failed bool `json:"failed"`
	} `json:"storage"`
}

type topicNumbers struct {
	Name         string `json:"topic_name"`
	Depth        int64  `json:"depth"`
	Published    uint64 `json:"published_count"` // ever
	MessageCount uint64 `json:"message_count"`   // since the start of each node
	MessageBytes uint64 `json:"message_bytes"`   // likewise
	StoredBytes  int64  `json:"stored_bytes"`    // of the leaders' logs, now
	Producers    int    `json:"producer_count"`
	MaxProducers int    `json:"max_producer_count"` // in the partition that knows the most
	Connected    int    `json:"connected_producer_count"`
	Partitions   int    `json:"partition_count"`   // on any node; 0: unknown
	Served       []int  `json:"served_partitions"` // their channels are counted; nil: unknown, an older version
	Paused       bool   `json:"paused"`
	OverQuota    bool   `json:"over_quota"`
	// DelaysRefused: partitions that refuse delayed messages now.
	DelaysRefused int              `json:"delays_refused"`
	ReadOnly      int              `json:"read_only_partitions"`     // that store nothing new
	MadeBy        string           `json:"made_by"`                  // see node.Topic.MadeBy
	Failed        bool             `json:"stores_nothing,omitempty"` // a node that serves some of it stores nothing more
	Channels      []channelNumbers `json:"channels,omitempty"`
}

type channelNumbers struct {
	Topic         string `json:"topic_name,omitempty"`
	Name          string `json:"channel_name"`
	Depth         int64  `json:"depth"`
	InFlightCount int    `json:"in_flight_count"`
	DeferredCount int    `json:"deferred_count"`
	MessageCount  uint64 `json:"message_count"`
	RequeueCount  uint64 `json:"requeue_count"`
	TimeoutCount  uint64 `json:"timeout_count"`
	ClientCount   int    `json:"client_count"` // at the leader that has the most
	Paused        bool   `json:"paused"`
	// The others are those of node.ChannelStats.
	OutboxCount    int    `json:"outbox_count"`
	AsideCount     int    `json:"aside_count"`
	AsideWhy       string `json:"aside_why"`
	FullPartitions int    `json:"full_partitions"`
	DroppedCount   uint64 `json:"dropped_count"`
	Dropping       bool   `json:"dropping"`
	SkippedCount   uint64 `json:"skipped_count"`
	Starved        bool   `json:"starved"`
	Skipping       bool   `json:"skipping"`
	SkippingSince  string `json:"skipping_since,omitempty"` // RFC 3339, see node.ChannelStats
	SkippedBefore  bool   `json:"skipped_before"`
}

// numbersTimeout is how long a node may take to say its numbers. Beyond it, the others' numbers are shown without it.
const numbersTimeout = 5 * time.Second

// While its leadership moves, no node serves a partition for a moment. Commands wait serveWait, and look again every
// serveRetry, before they report such a partition. A node that dies leads nothing after about two seconds.
const (
	serveWait  = 3 * time.Second
	serveRetry = 100 * time.Millisecond
)

// maxNamed bounds the topics, and the partitions of each, that a sentence names.
const maxNamed = 8

// topics returns the numbers of all topics, or of one topic, which must exist. In a cluster it adds up the numbers of
// all nodes, because every node counts only what it leads. If some of the nodes do not answer, or nobody serves a
// partition for serveWait, missing names them and the numbers are those of the others; if no node answers, topics
// returns an error.
func (o *operator) topics(ctx context.Context, topic ...string) (all []topicNumbers, missing, err error) {
	for begun := time.Now(); ; {
		all, gone, err := o.look(ctx, topic...)
		if err != nil {
			return nil, nil, err
		}
		unserved := unservedOf(all)
		if len(gone) > 0 || len(unserved) == 0 || time.Since(begun) > serveWait {
			return all, partial(append(gone, unserved...)), nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(serveRetry):
		}
	}
}

// topicsNow is topics without waiting until every partition is served.
func (o *operator) topicsNow(ctx context.Context, topic ...string) (all []topicNumbers, missing, err error) {
	all, gone, err := o.look(ctx, topic...)
	return all, partial(append(gone, unservedOf(all)...)), err
}

// partial returns the error of a result that lacks something; nil: it lacks nothing.
func partial(lacks []string) error {
	if len(lacks) == 0 {
		return nil
	}
	return &exitError{exitPartial, fmt.Errorf("the result is partial: %s", strings.Join(lacks, "; "))}
}

// unservedOf says which partitions no node serves, a sentence for each topic.
func unservedOf(all []topicNumbers) (lacks []string) {
	for i := range all {
		n := &all[i]
		none := api.Unserved(n.Partitions, n.Served)
		if len(none) == 0 {
			continue
		}
		if len(lacks) == maxNamed {
			return append(lacks, "the same holds for further topics")
		}
		lacks = append(lacks, fmt.Sprintf("nobody serves %s of topic %s: what its channels have there is not counted",
			partitionNames(none), n.Name))
	}
	return lacks
}

// partitionNames names partitions in a sentence, at most maxNamed of them.
func partitionNames(ns []int) string {
	if len(ns) == 1 {
		return fmt.Sprint("partition ", ns[0])
	}
	var text []string
	for _, n := range ns[:min(len(ns), maxNamed)] {
		text = append(text, strconv.Itoa(n))
	}
	more := ""
	if len(ns) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(ns)-maxNamed)
	}
	return "partitions " + strings.Join(text, ", ") + more
}

// look is topicsNow, but gone names only the nodes that do not answer.
func (o *operator) look(ctx context.Context, topic ...string) (all []topicNumbers, gone []string, err error) {
	nodes, gone, err := o.members(ctx)
	if err != nil {
		return nil, nil, err
	}
	type answer struct {
		all []topicNumbers
		err error
	}
	answers := make([]answer, len(nodes))
	var asking sync.WaitGroup
	for i, n := range nodes {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, numbersTimeout)
			defer cancel()
			answers[i].all, answers[i].err = numbersOf(ctx, n.client, topic...)
		})
	}
	asking.Wait()
	sum, answered := map[string]*topicNumbers{}, 0
	for i := range answers {
		all, err := answers[i].all, answers[i].err
		switch {
		case err != nil && len(nodes) == 1 && len(gone) == 0, errors.Is(err, client.ErrUsage):
			return nil, nil, err
		case err != nil:
			gone = append(gone, fmt.Sprintf("node %s does not say its numbers (%v)", nodes[i].name, err))
			continue
		}
		answered++
		for i := range all {
			if had := sum[all[i].Name]; had != nil {
				had.add(&all[i])
			} else {
				sum[all[i].Name] = &all[i]
			}
		}
	}
	if answered == 0 {
		return nil, nil, &exitError{exitOther, fmt.Errorf("nobody says any numbers: %s", strings.Join(gone, "; "))}
	}
	if len(topic) > 0 && len(sum) == 0 && len(gone) == 0 {
		return nil, nil, fmt.Errorf("there is no topic %s (node at %s)", topic[0], o.client.Address)
	}
	all = make([]topicNumbers, 0, len(sum))
	for _, name := range slices.Sorted(maps.Keys(sum)) {
		all = append(all, *sum[name])
	}
	return all, gone, nil
}

// member is a node of the cluster that can be asked.
type member struct {
	name   string
	client *client.Client
}

// members returns the node that o asks and all live nodes of its cluster. gone says which nodes cannot be asked and
// why, unless the others lead all that they led.
func (o *operator) members(ctx context.Context) (out []member, gone []string, err error) {
	var st admin.Status
	switch err := o.client.Get(ctx, "/cluster/status", url.Values{}, &st); {
	case errors.Is(err, client.ErrNoSuchRequest):
		return []member{{o.client.Address, &o.client}}, nil, nil // the node is in no cluster
	case err != nil:
		return nil, nil, err
	}
	for i := range st.Nodes {
		n := &st.Nodes[i]
		if n.Name == st.Node {
			out = append(out, member{n.Name, &o.client})
			continue
		}
		if !n.Live {
			if st.Leaderless > 0 {
				gone = append(gone, fmt.Sprintf("node %s is %s", n.Name, nodeState(n)))
			}
			continue
		}
		c, err := o.client.At(n.HTTP, n.HTTPS)
		if err != nil {
			gone = append(gone, fmt.Sprintf("node %s cannot be asked: %v", n.Name, err))
			continue
		}
		out = append(out, member{n.Name, c})
	}
	if len(out) == 0 {
		out = append(out, member{o.client.Address, &o.client})
	}
	return out, gone, nil
}

// printed returns the error of printing, or else what is missing in what was printed.
func printed(err, missing error) error {
	if err != nil {
		return err
	}
	return missing
}

// add adds another node's numbers of the same topic.
func (n *topicNumbers) add(m *topicNumbers) {
	n.Depth += m.Depth
	n.Published += m.Published
	n.MessageCount += m.MessageCount
	n.MessageBytes += m.MessageBytes
	n.StoredBytes += m.StoredBytes
	n.Producers += m.Producers
	n.Connected += m.Connected
	n.MaxProducers = max(n.MaxProducers, m.MaxProducers)
	n.Partitions = max(n.Partitions, m.Partitions)
	n.Served = api.AllServed(n.Served, m.Served)
	n.Paused = n.Paused || m.Paused
	n.OverQuota = n.OverQuota || m.OverQuota
	n.DelaysRefused += m.DelaysRefused
	n.ReadOnly += m.ReadOnly
	n.MadeBy = cmp.Or(n.MadeBy, m.MadeBy)
	n.Failed = n.Failed || m.Failed
	for _, c := range m.Channels {
		i := slices.IndexFunc(n.Channels, func(had channelNumbers) bool { return had.Name == c.Name })
		if i < 0 {
			n.Channels = append(n.Channels, c)
			continue
		}
		had := &n.Channels[i]
		had.Depth += c.Depth
		had.InFlightCount += c.InFlightCount
		had.DeferredCount += c.DeferredCount
		had.MessageCount += c.MessageCount
		had.RequeueCount += c.RequeueCount
		had.TimeoutCount += c.TimeoutCount
		had.ClientCount = max(had.ClientCount, c.ClientCount) // a consumer mostly subscribes at each leader
		had.Paused = had.Paused || c.Paused
		had.OutboxCount += c.OutboxCount
		had.AsideCount += c.AsideCount
		had.AsideWhy = cmp.Or(had.AsideWhy, c.AsideWhy)
		had.FullPartitions += c.FullPartitions
		had.DroppedCount += c.DroppedCount
		had.Dropping = had.Dropping || c.Dropping
		had.SkippedCount += c.SkippedCount
		had.Skipping = had.Skipping || c.Skipping
		had.Starved = had.Starved || c.Starved
		had.SkippingSince = health.Earlier(had.SkippingSince, c.SkippingSince)
		had.SkippedBefore = had.SkippedBefore || c.SkippedBefore
	}
}

// numbersOf returns the numbers of one node.
func numbersOf(ctx context.Context, c *client.Client, topic ...string) ([]topicNumbers, error) {
	q := url.Values{}
	if len(topic) > 0 {
		q.Set("topic", topic[0])
	}
	for name, v := range map[string]string{"format": "json", "include_clients": "false", "include_mem": "false"} {
		q.Set(name, v)
	}
	var st nodeStats
	if err := c.Get(ctx, "/stats", q, &st); err != nil {
		return nil, err
	}
	for i := range st.Topics {
		st.Topics[i].Failed = st.Storage.Failed && (st.Topics[i].Served == nil || len(st.Topics[i].Served) > 0)
	}
	return st.Topics, nil
}

// channelsOf returns all channels, each with the name of its topic.
func channelsOf(all []topicNumbers) []channelNumbers {
	out := []channelNumbers{}
	for i := range all {
		for _, c := range all[i].Channels {
			c.Topic = all[i].Name
			out = append(out, c)
		}
	}
	return out
}

func printTopicNumbers(w io.Writer, all []topicNumbers) error {
	t := table(w)
	maker, head := func(string) string { return "" }, ""
	if slices.ContainsFunc(all, func(n topicNumbers) bool { return n.MadeBy != "" }) {
		maker, head = func(name string) string { return clip.Text(name, 32) + "\t" }, "MADE BY\t"
	}
	fmt.Fprintln(t, "TOPIC\tCHANNELS\tDEPTH\tMESSAGES\tBYTES STORED\tPRODUCERS\t"+head+"STATE")
	for i := range all {
		n := &all[i]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%s%s\n", n.Name, len(n.Channels), n.Depth, n.Published, n.StoredBytes,
			n.Connected, maker(n.MadeBy), n.ownState())
	}
	return t.Flush()
}

func printChannels(w io.Writer, all []topicNumbers) error {
	t := table(w)
	fmt.Fprintln(t, "TOPIC\tCHANNEL\tDEPTH\tIN FLIGHT\tDEFERRED\tRECEIVED SINCE START\tREQUEUED SINCE START\t"+
		"TIMED OUT SINCE START\tDROPPED SINCE START\tCONSUMERS\tSTATE")
	for i := range all {
		of := &all[i]
		for _, n := range of.Channels {
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", of.Name, n.Name, n.Depth, n.InFlightCount,
				n.DeferredCount, n.MessageCount, n.RequeueCount, n.TimeoutCount, n.DroppedCount, n.ClientCount, of.stateOf(&n))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return printHeldUp(w, all)
}

// printHeldUp prints one line for each state in which a channel does not deliver all that is published. Each line says
// what the state means and what to do.
func printHeldUp(w io.Writer, all []topicNumbers) error {
	var b strings.Builder
	for i := range all {
		for _, n := range all[i].Channels {
			c := health.Channel{Topic: all[i].Name, Name: n.Name, Count: n.AsideCount, Why: n.AsideWhy}
			if c.Count > 0 {
				fmt.Fprintln(&b, c.AsideWords())
			}
			if c.Count = int(n.DroppedCount); n.Dropping {
				fmt.Fprintln(&b, c.DroppingWords())
			}
			if c.Count, c.Why, c.Before = int(n.SkippedCount), n.SkippingSince, n.SkippedBefore; n.Skipping {
				fmt.Fprintln(&b, c.SkippingWords())
			}
			if n.Starved {
				fmt.Fprintln(&b, c.StarvedWords())
			}
			if c.Count = n.FullPartitions; c.Count > 0 {
				fmt.Fprintln(&b, c.FullWords())
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// stateOf says, besides state, which states the channel has that only an operator or its consumers can end.
func (n *topicNumbers) stateOf(c *channelNumbers) string {
	return joinStates(n.state(n.Paused || c.Paused), []stateWord{
		{n.ReadOnly > 0, "read only"},
		{c.Skipping, "skipping"},
		{c.FullPartitions > 0, "full"},
		{c.Starved, "starved"},
		{c.Dropping, "dropping"},
		{c.AsideCount > 0, "dead letters aside"},
		{n.DelaysRefused > 0, "delays refused"},
	})
}

// ownState says, besides state, whether the topic is read-only, and whether it refuses delayed messages.
func (n *topicNumbers) ownState() string {
	return joinStates(n.state(n.Paused), []stateWord{
		{n.ReadOnly > 0, "read only"},
		{n.DelaysRefused > 0, "delays refused"},
	})
}

type stateWord struct {
	holds bool
	word  string
}

// joinStates returns the state with the words that hold, which replace an ok.
func joinStates(state string, more []stateWord) string {
	states := []string{state}
	for _, s := range more {
		if s.holds {
			states = append(states, s.word)
		}
	}
	if len(states) > 1 && states[0] == "ok" {
		states = states[1:]
	}
	return strings.Join(states, ", ")
}

// state says whether the topic, or one of its channels, is paused or, before that, whether somebody serves it, and
// stores what is published and confirmed.
func (n *topicNumbers) state(paused bool) string {
	switch none := len(api.Unserved(n.Partitions, n.Served)); {
	case none > 0 && none == n.Partitions:
		return "not served"
	case none > 0:
		return "partly served"
	case n.Failed:
		return "stores nothing"
	case n.OverQuota && paused:
		return "over quota, paused"
	case n.OverQuota:
		return "over quota"
	case paused:
		return "paused"
	}
	return "ok"
}

// maxShownRunes bounds the part of a body or a header's value that a table shows.
const maxShownRunes = 80

// shown returns a body or a header's value in the form for a table. Binary data and unprintable text are quoted like a
// Go string.
func shown(text *string, raw []byte) string {
	s := ""
	switch {
	case text == nil:
		s = strconv.QuoteToASCII(string(raw))
	case strings.ContainsFunc(*text, func(r rune) bool { return !unicode.IsPrint(r) }):
		s = strconv.Quote(*text)
	default:
		s = *text
	}
	if utf8.RuneCountInString(s) > maxShownRunes {
		s = string([]rune(s)[:maxShownRunes]) + "…"
	}
	return s
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func printPeeked(w io.Writer, list *api.PeekList) error {
	t := table(w)
	fmt.Fprintln(t, "ID\tPARTITION\tNUMBER\tPUBLISHED\tDUE\tBYTES\tHEADERS\tBODY")
	for i := range list.Messages {
		m := &list.Messages[i]
		var headers []string
		for _, h := range m.Headers {
			headers = append(headers, clip.Plain(h.Name)+"="+shown(h.Value, h.ValueBase64))
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%d\t%s\t%s\n", m.ID, m.Partition, m.Number, stamp(m.Timestamp), stamp(m.Due),
			m.BodyBytes,
			dash(strings.Join(headers, " ")), shown(m.Body, m.BodyBase64))
	}
	return t.Flush()
}

func printWaiting(w io.Writer, list *api.WaitingList, when string) error {
	t := table(w)
	if when == "SINCE" {
		fmt.Fprintln(t, "ID\tPARTITION\tNUMBER\tSINCE\tTIMES OUT\tATTEMPTS\tCONSUMER")
	} else {
		fmt.Fprintln(t, "ID\tPARTITION\tNUMBER\tDUE\tATTEMPTS")
	}
	for i := range list.Messages {
		m := &list.Messages[i]
		if when == "SINCE" {
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%d\t%s\n", m.ID, m.Partition, m.Number, stamp(m.Since), stamp(m.Due), m.Attempts,
				dash(m.Client))
			continue
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%d\n", m.ID, m.Partition, m.Number, stamp(m.Due), m.Attempts)
	}
	return t.Flush()
}
