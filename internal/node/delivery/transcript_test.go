package delivery

import (
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
	"penstock/tests/support/transcripttest"
)

var update = flag.Bool("update", false, "rewrite transcripts")

// A transcript is a text of events and of the channel's answers. Lines that begin with a word are events, indented
// lines are results (rewritten by -update), and lines with # are for the reader. Times are ms after the start; ids are
// partition:message.
//
//	channel max-in-flight=2            a new channel; the names are those of ChannelConfig
//	add part=0 end=5 confirmed=2 ranges=3-4 requeued=4@700/2 deferred=9@50 start=1
//	pump                               offer what EvNext names, until it names nothing more
//	next [stay]                        what EvNext names
//	redeliver                          offer the queued message whose turn it is, if new messages have no turn
//	offer part=0 [msg=3]               one message: at the reading cursor unless msg says otherwise
//	run part=0 count=5                 messages from the reading cursor on, as a run
//	at 500 / tick 500                  the time becomes 500; tick also sends EvTick
//	take part=0                        the controls for the partition's log
//	configure version=2 order=key max-attempts=3 rate=10 max-in-flight=2 sample=50 here=1 all=3
//	commit part=0 [take=3]             the takes so far, or up to this one, are committed
//	moved part=0 ranges=3-5            dead letters left the outbox
//	carried part=0 deferred=4@50       the messages are at id*100+7 now
//	gone id=0:4                        the message's bytes were removed while it waited
//	subscribe client=1 hold=2000       hold: how long a delivery may be on its way to the client
//	through client=1 seen=3            the client has finished its delivery with this number, and all before it
//	return client=1 id=0:4 seen=3      the client's node did not hand over the delivery with this serial
//	may-run part=0                     how long a run may be now
//	lists                              messages in flight, waiting messages, and the outbox
//	show                               everything that can be asked
type transcript struct {
	t     *testing.T
	c     *Channel
	parts []uint32
	nowMs int64
	tags  map[batch.ID]uint64 // of the messages that were offered
	out   strings.Builder
}

const transcriptStartMs = 1_700_000_000_000

// The transcripts show, and break with, these behaviours:
//
//	channel_delivery.txt  B13, B44, B45, B47
//	channel_through.txt   B45, B47, B56, B57
//	channel_clients.txt   B63, requeue at once when a client goes, round robin
//	channel_time.txt      B48, B49
//	channel_deferred.txt  B50, B51, B64
//	channel_bounds.txt    B46, B62
//	channel_pause.txt     B53, B54
//	channel_reset.txt     B52, B56, B66, B67
//	channel_order.txt     B57
//	channel_dead.txt      B64
//	channel_limits.txt    B60, B62
//	channel_tags.txt      B59
//	channel_carried.txt   B51, B52
//	channel_removed.txt   B44, B47
//	channel_recall.txt    B57
//	channel_runs.txt      B45, B46, B47, B49
func TestChannelTranscripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/channel_*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			transcripttest.Replay(t, path, *update, playTranscript)
		})
	}
}

func playTranscript(t *testing.T, text string) string {
	tr := &transcript{t: t}
	transcripttest.Play(text, &tr.out, tr.play)
	return tr.out.String()
}

func (tr *transcript) say(format string, args ...any) {
	fmt.Fprintf(&tr.out, "  "+format+"\n", args...)
}

// args are the key=value words of a line.
type args struct{ transcripttest.Args }

func (a args) msgID(key string) segment.MsgID { return segment.MsgID(a.Int(key)) }

func (a args) id() batch.ID {
	var part uint32
	var m segment.MsgID
	a.Scan(a.Values["id"], "%d:%d", &part, &m)
	return batch.MakeID(part, m)
}

func (a args) deferred() (out []fold.DeferredMessage) {
	for _, text := range a.List("deferred") {
		var d fold.DeferredMessage
		a.Scan(text, "%d@%d", &d.ID, &d.DueMs)
		d.DueMs += transcriptStartMs
		d.At = segment.Offset(d.ID) * 100
		out = append(out, d)
	}
	return out
}

func (a args) cursor() *fold.Cursor {
	cur := &fold.Cursor{Confirmed: a.msgID("confirmed"), Paused: a.Has("paused"), Skipped: a.Has("skipped")}
	if a.Has("version") {
		cur.Settings = a.settings()
	}
	for _, text := range a.List("dead") {
		var d fold.DeadMessage
		a.Scan(text, "%d/%d", &d.ID, &d.Attempts)
		cur.Dead = append(cur.Dead, d)
	}
	for _, text := range a.List("ranges") {
		var r fold.IDRange
		a.Scan(text, "%d-%d", &r.From, &r.To)
		cur.Ranges.AddRange(r)
	}
	for _, text := range a.List("requeued") {
		var d fold.Deferral
		if text, at, carried := strings.Cut(text, "#"); carried {
			a.Scan(at, "%d", &d.At)
			a.Scan(text, "%d@%d/%d", &d.ID, &d.DueMs, &d.Attempts)
		} else {
			a.Scan(text, "%d@%d/%d", &d.ID, &d.DueMs, &d.Attempts)
		}
		d.DueMs += transcriptStartMs
		cur.Requeued = append(cur.Requeued, d)
	}
	return cur
}

func (a args) ranges() (out []fold.IDRange) {
	for _, text := range a.List("ranges") {
		var r fold.IDRange
		a.Scan(text, "%d-%d", &r.From, &r.To)
		out = append(out, r)
	}
	return out
}

func (a args) settings() fold.ChannelSettings {
	s := fold.ChannelSettings{
		Version: uint64(a.Int("version")), MaxAttempts: uint16(a.Int("max-attempts")), RatePerSecond: uint32(a.Int("rate")),
		MaxInFlight: uint32(a.Int("max-in-flight")), SampleRate: uint8(a.Int("sample")), KeyHeader: a.Values["key-header"],
	}
	if err := s.Order.UnmarshalText([]byte(a.Values["order"])); err != nil {
		a.T.Fatalf("%v: %v", a.Line, err)
	}
	return s
}

func (a args) config() ChannelConfig {
	return ChannelConfig{
		Name: "c", MaxInFlight: int(a.Int("max-in-flight")), MaxRanges: int(a.Int("max-ranges")),
		MaxDeferred:  int(a.Int("max-deferred")),
		MaxConsumers: int(a.Int("max-consumers")), MaxReadyCount: int(a.Int("max-ready")),
		MaxMsgTimeoutMs: a.Int("max-msg-timeout"),
		MaxReqTimeoutMs: a.Int("max-req-timeout"), SampleSeed: uint64(a.Int("seed")), Ephemeral: a.Has("ephemeral"),
		MaxKeyWaiting: int(a.Int("max-key-waiting")), MaxOutbox: int(a.Int("max-outbox")),
	}
}

var transcriptEvents = map[string]EventKind{
	"add": EvAddPartition, "visible": EvVisible, "deferred": EvDeferredPublished, "trimmed": EvTrimmed,
	"dropped":   EvDropped,
	"subscribe": EvSubscribe, "unsubscribe": EvUnsubscribe, "ready": EvReady, "stop": EvStop,
	"blocked": EvBlocked, "offer": EvOffer, "run": EvOfferRun,
	"drop": EvDrop, "finish": EvFinish,
	"through": EvFinishThrough, "requeue": EvRequeue,
	"touch": EvTouch, "pause": EvPause, "skip": EvSkip, "empty": EvEmpty, "reset": EvReset,
	"configure": EvConfigure, "commit": EvConfirmsCommitted, "moved": EvDeadMoved, "carried": EvCarried, "gone": EvGone,
	"remove": EvRemovePartition, "limit": EvLimit,
	"unread": EvUnread, "hold": EvHold, "return": EvReturn, "unfence": EvUnfence,
}

func (tr *transcript) play(words []string) {
	a := args{transcripttest.Parse(tr.t, words)}
	kind, isEvent := transcriptEvents[words[0]]
	switch {
	case isEvent:
		tr.event(kind, a)
	case words[0] == "channel":
		tr.nowMs, tr.parts, tr.tags = transcriptStartMs, nil, map[batch.ID]uint64{}
		tr.c = NewChannel(a.config())
	case words[0] == "at", words[0] == "tick":
		ms, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			tr.t.Fatalf("%v: %v", words, err)
		}
		tr.nowMs = transcriptStartMs + ms
		if words[0] == "tick" {
			tr.step(&Event{Kind: EvTick})
		}
	case words[0] == "next":
		next := tr.step(&Event{Kind: EvNext, Flag: a.Has("stay")})
		switch {
		case next.Queued:
			tr.say("read %s, up to %d", idText(next.ID), next.Count)
		case next.Decision == Read:
			tr.say("read %d: up to %d", next.Part, next.Count)
		default:
			tr.sayResult(&Event{}, &next)
		}
	case words[0] == "redeliver":
		res := redeliver(tr.c, tr.nowMs*nsPerMs, tr.tagOf)
		tr.sayResult(&Event{}, &res)
	case words[0] == "pump":
		tr.pump()
	case words[0] == "take":
		tr.take(uint32(a.Int("part")))
	case words[0] == "may-run":
		r := tr.c.NextRun(uint32(a.Int("part")))
		tr.say("%d to %d, from number %d on", r.Count, r.Client, r.Number)
	case words[0] == "show":
		tr.show()
	case words[0] == "lists":
		tr.lists()
	default:
		tr.t.Fatalf("%v: unknown word", words)
	}
}

func (tr *transcript) step(ev *Event) Result {
	var res Result
	tr.c.Step(tr.nowMs*nsPerMs, ev, &res)
	return res
}

func (tr *transcript) event(kind EventKind, a args) {
	ev := Event{
		Kind: kind, Part: uint32(a.Int("part")), Client: ClientID(a.Int("client")), Count: int(a.Int("count")),
		Start: a.msgID("start"), End: a.msgID("end"), Msg: a.msgID("msg"), MsgTimeoutMs: a.Int("timeout"),
		Tag: uint64(a.Int("tag")), Only: uint32(a.Int("only")), Key: uint64(a.Int("key")), Unwanted: a.Has("unwanted"),
		Own:  a.Has("own"),
		Take: uint64(a.Int("take")), Ranges: a.ranges(),
		SampleRate: int(a.Int("sample")), DelayMs: a.Int("delay"), Flag: a.Has("on"), Deferred: a.deferred(),
		HoldMs: a.Int("hold"), Seen: uint64(a.Int("seen")),
	}
	if a.Has("id") {
		ev.ID = a.id()
	}
	switch kind {
	case EvAddPartition:
		ev.Cursor = a.cursor()
		tr.parts = append(tr.parts, ev.Part)
	case EvRemovePartition:
		tr.parts = slices.DeleteFunc(tr.parts, func(n uint32) bool { return n == ev.Part })
	case EvConfigure:
		if s := a.settings(); a.Has("version") {
			ev.Settings = &s
		}
		ev.SampleRate = 0
		ev.PartsAll = uint32(a.Int("all"))
	case EvLimit:
		cfg := a.config()
		ev.Limits = &cfg
	case EvConfirmsCommitted:
		if !a.Has("take") {
			ev.Take = tr.c.LastTake(ev.Part)
		}
	case EvCarried:
		for i := range ev.Deferred {
			ev.Deferred[i].At += 7
		}
	case EvOffer, EvOfferRun:
		if !a.Has("msg") {
			ev.Msg = tr.c.ReadFrom(ev.Part)
		}
		ev.At, ev.Index = segment.Offset(ev.Msg)*100, 7
		tr.tags[batch.MakeID(ev.Part, ev.Msg)] = ev.Tag
	}
	res := tr.step(&ev)
	if kind == EvFinishThrough {
		tr.say("finished %d", res.Count)
	}
	if res.Err != nil {
		tr.say("error: %v", res.Err)
	}
	switch {
	case kind == EvOfferRun:
		tr.say("delivered %d to %d", res.Count, res.Client)
	case res.Decision != 0:
		tr.sayResult(&ev, &res)
	}
}

func (tr *transcript) sayResult(ev *Event, res *Result) {
	switch res.Decision {
	case Deliver:
		place := "unknown"
		if res.HasAt {
			place = fmt.Sprintf("%d/%d", res.At, int32(res.Index))
		}
		serial := ""
		if res.Serial != 0 {
			serial = fmt.Sprintf(", serial %d", res.Serial)
		}
		tr.say("deliver %s to %d, attempts %d, place %s%s", idText(res.ID), res.Client, res.Attempts, place, serial)
	case Skip:
		if ev.Kind == EvOffer {
			res.ID = batch.MakeID(ev.Part, ev.Msg)
			if e := tr.c.entries.get(res.ID); e != nil && e.state == entryParked {
				tr.say("skip %s: parked", idText(res.ID))
				return
			}
		}
		tr.say("skip %s", idText(res.ID))
	case Hold:
		tr.say("hold: %s", [...]string{
			"", "no credit", "paused", "ranges", "end", "moved", "empty", "order", "rate",
		}[res.Why])
	}
}

func idText(id batch.ID) string { return fmt.Sprintf("%d:%d", id.Partition(), id.MsgID()) }

func (tr *transcript) pump() {
	for {
		next := tr.step(&Event{Kind: EvNext})
		if next.Decision == Hold {
			return
		}
		ev := Event{Kind: EvOffer, Flag: next.Queued, Part: next.Part, Msg: next.ID.MsgID()}
		if !next.Queued {
			ev.Msg = tr.c.ReadFrom(ev.Part)
		}
		ev.At, ev.Index, ev.Tag = segment.Offset(ev.Msg)*100, 7, tr.tagOf(batch.MakeID(ev.Part, ev.Msg))
		if res := tr.step(&ev); res.Decision != Hold {
			tr.sayResult(&ev, &res)
		}
	}
}

func (tr *transcript) tagOf(id batch.ID) uint64 { return tr.tags[id] }

func (tr *transcript) take(part uint32) {
	for _, ct := range tr.c.TakeControls(part, nil) {
		switch ct.Kind {
		case fold.Confirmed:
			tr.say("confirmed %s", rangesText(ct.Ranges))
		case fold.Deferred:
			for _, d := range ct.Deferrals {
				tr.say("deferred %d until %d, attempts %d", d.ID, d.DueMs-transcriptStartMs, d.Attempts)
			}
		case fold.ChannelPaused:
			tr.say("paused %v", ct.Flag)
		case fold.ChannelSkipped:
			tr.say("skipped %v", ct.Flag)
		case fold.ChannelReset:
			tr.say("reset to %d", ct.ID)
		case fold.ChannelConfigured:
			tr.say("configured version %d, order %v, max attempts %d",
				ct.Settings.Version, ct.Settings.Order, ct.Settings.MaxAttempts)
		case fold.DeadLettered:
			for _, d := range ct.Dead {
				tr.say("dead letter %d, attempts %d", d.ID, d.Attempts)
			}
		case fold.DeadLetterMoved:
			tr.say("moved %s", rangesText(ct.Ranges))
		}
	}
}

func (tr *transcript) lists() {
	tr.c.EachInFlight(func(m InFlightMessage) {
		tr.say("%s in flight to %d since %d until %d, attempts %d",
			idText(m.ID), m.Client, m.SinceMs-transcriptStartMs, m.DueMs-transcriptStartMs, m.Attempts)
	})
	tr.c.EachWaiting(func(m WaitingMessage) {
		tr.say("%s waits until %d, attempts %d", idText(m.ID), m.DueMs-transcriptStartMs, m.Attempts)
	})
	for _, part := range tr.parts {
		for _, d := range tr.c.Outbox(part, nil) {
			tr.say("%d:%d in the outbox, attempts %d", part, d.ID, d.Attempts)
		}
	}
	s := tr.c.Stats()
	tr.say("parked %d, outbox %d, dead %d, filtered %d", s.ParkedCount, s.OutboxCount, s.DeadCount, s.FilteredCount)
}

func rangesText(rs []fold.IDRange) string {
	var words []string
	for _, r := range rs {
		words = append(words, fmt.Sprintf("%d-%d", r.From, r.To))
	}
	return strings.Join(words, ",")
}

func (tr *transcript) show() {
	s := tr.c.Stats()
	tr.say("depth %d, in flight %d, deferred %d, queued %d", s.Depth, s.InFlightCount, s.DeferredCount, s.QueuedCount)
	tr.say("messages %d, requeues %d, timeouts %d", s.MessageCount, s.RequeueCount, s.TimeoutCount)
	for _, part := range tr.parts {
		p := tr.c.part(part)
		tr.say("part %d: confirmed %d [%s], read from %d, visible end %d",
			part, tr.c.OldestUnconfirmed(part), rangesText(p.ranges.Ranges()), tr.c.ReadFrom(part), p.end)
	}
	tr.c.EachClient(func(c ClientStats) {
		tr.say("client %d: ready %d, in flight %d, messages %d, finished %d, requeued %d",
			c.Client, c.ReadyCount, c.InFlightCount, c.MessageCount, c.FinishCount, c.RequeueCount)
	})
	if at, ok := tr.c.NextDue(); ok {
		tr.say("next due %d", at-transcriptStartMs)
	}
}
