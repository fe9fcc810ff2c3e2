package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock/batch"
	"penstock/segment"
)

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
	tags  map[ID]uint64 // of the messages that were offered
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
			replay(t, path, playTranscript)
		})
	}
}

// replay plays a transcript and compares the answers with its results. With -update it replaces the results.
func replay(t *testing.T, path string, play func(t *testing.T, text string) string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := play(t, string(text))
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, have := strings.Split(string(text), "\n"), strings.Split(got, "\n")
	for i := range max(len(want), len(have)) {
		if i >= len(want) || i >= len(have) || want[i] != have[i] {
			t.Fatalf("%s:%d\n want %q\n have %q\nall of it:\n%s", path, i+1, line(want, i), line(have, i), got)
		}
	}
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(nothing)"
}

func playTranscript(t *testing.T, text string) string {
	tr := &transcript{t: t}
	for _, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		switch {
		case strings.HasPrefix(l, " "): // an old result
		case l == "" || l[0] == '#':
			fmt.Fprintln(&tr.out, l)
		default:
			fmt.Fprintln(&tr.out, l)
			tr.play(strings.Fields(l))
		}
	}
	return tr.out.String()
}

func (tr *transcript) say(format string, args ...any) {
	fmt.Fprintf(&tr.out, "  "+format+"\n", args...)
}

// args are the key=value words of a line.
type args struct {
	t      *testing.T
	line   []string
	values map[string]string
}

func (a args) int(key string) int64 {
	a.t.Helper()
	text, ok := a.values[key]
	if !ok {
		return 0
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		a.t.Fatalf("%v: %v", a.line, err)
	}
	return v
}

func (a args) has(word string) bool { _, ok := a.values[word]; return ok }

func (a args) list(key string) []string {
	if a.values[key] == "" {
		return nil
	}
	return strings.Split(a.values[key], ",")
}

func (a args) msgID(key string) segment.MsgID { return segment.MsgID(a.int(key)) }

func (a args) id() ID {
	var part uint32
	var m segment.MsgID
	a.scan(a.values["id"], "%d:%d", &part, &m)
	return batch.MakeID(part, m)
}

func (a args) scan(text, format string, to ...any) {
	a.t.Helper()
	if _, err := fmt.Sscanf(text, format, to...); err != nil {
		a.t.Fatalf("%v: %q: %v", a.line, text, err)
	}
}

func (a args) deferred() (out []DeferredMessage) {
	for _, text := range a.list("deferred") {
		var d DeferredMessage
		a.scan(text, "%d@%d", &d.ID, &d.DueMs)
		d.DueMs += transcriptStartMs
		d.At = segment.Offset(d.ID) * 100
		out = append(out, d)
	}
	return out
}

func (a args) cursor() *Cursor {
	cur := &Cursor{Confirmed: a.msgID("confirmed"), Paused: a.has("paused"), Skipped: a.has("skipped")}
	if a.has("version") {
		cur.Settings = a.settings()
	}
	for _, text := range a.list("dead") {
		var d DeadMessage
		a.scan(text, "%d/%d", &d.ID, &d.Attempts)
		cur.Dead = append(cur.Dead, d)
	}
	for _, text := range a.list("ranges") {
		var r IDRange
		a.scan(text, "%d-%d", &r.From, &r.To)
		cur.Ranges.AddRange(r)
	}
	for _, text := range a.list("requeued") {
		var d Deferral
		if text, at, carried := strings.Cut(text, "#"); carried {
			a.scan(at, "%d", &d.At)
			a.scan(text, "%d@%d/%d", &d.ID, &d.DueMs, &d.Attempts)
		} else {
			a.scan(text, "%d@%d/%d", &d.ID, &d.DueMs, &d.Attempts)
		}
		d.DueMs += transcriptStartMs
		cur.Requeued = append(cur.Requeued, d)
	}
	return cur
}

func (a args) ranges() (out []IDRange) {
	for _, text := range a.list("ranges") {
		var r IDRange
		a.scan(text, "%d-%d", &r.From, &r.To)
		out = append(out, r)
	}
	return out
}

func (a args) settings() ChannelSettings {
	s := ChannelSettings{
		Version: uint64(a.int("version")), MaxAttempts: uint16(a.int("max-attempts")), RatePerSecond: uint32(a.int("rate")),
		MaxInFlight: uint32(a.int("max-in-flight")), SampleRate: uint8(a.int("sample")), KeyHeader: a.values["key-header"],
	}
	if err := s.Order.UnmarshalText([]byte(a.values["order"])); err != nil {
		a.t.Fatalf("%v: %v", a.line, err)
	}
	return s
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
	"remove": EvRemovePartition,
	"unread": EvUnread, "hold": EvHold, "return": EvReturn, "unfence": EvUnfence,
}

func (tr *transcript) play(words []string) {
	a := args{t: tr.t, line: words, values: map[string]string{}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		a.values[key] = value
	}
	kind, isEvent := transcriptEvents[words[0]]
	switch {
	case isEvent:
		tr.event(kind, a)
	case words[0] == "channel":
		tr.nowMs, tr.parts, tr.tags = transcriptStartMs, nil, map[ID]uint64{}
		tr.c = NewChannel(ChannelConfig{
			Name: "c", MaxInFlight: int(a.int("max-in-flight")), MaxRanges: int(a.int("max-ranges")),
			MaxDeferred:  int(a.int("max-deferred")),
			MaxConsumers: int(a.int("max-consumers")), MaxReadyCount: int(a.int("max-ready")),
			MaxMsgTimeoutMs: a.int("max-msg-timeout"),
			MaxReqTimeoutMs: a.int("max-req-timeout"), SampleSeed: uint64(a.int("seed")), Ephemeral: a.has("ephemeral"),
			MaxKeyWaiting: int(a.int("max-key-waiting")), MaxOutbox: int(a.int("max-outbox")),
		})
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
		next := tr.step(&Event{Kind: EvNext, Flag: a.has("stay")})
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
		tr.take(uint32(a.int("part")))
	case words[0] == "may-run":
		r := tr.c.NextRun(uint32(a.int("part")))
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
		Kind: kind, Part: uint32(a.int("part")), Client: ClientID(a.int("client")), Count: int(a.int("count")),
		Start: a.msgID("start"), End: a.msgID("end"), Msg: a.msgID("msg"), MsgTimeoutMs: a.int("timeout"),
		Tag: uint64(a.int("tag")), Only: uint32(a.int("only")), Key: uint64(a.int("key")), Unwanted: a.has("unwanted"),
		Own:  a.has("own"),
		Take: uint64(a.int("take")), Ranges: a.ranges(),
		SampleRate: int(a.int("sample")), DelayMs: a.int("delay"), Flag: a.has("on"), Deferred: a.deferred(),
		HoldMs: a.int("hold"), Seen: uint64(a.int("seen")),
	}
	if a.has("id") {
		ev.ID = a.id()
	}
	switch kind {
	case EvAddPartition:
		ev.Cursor = a.cursor()
		tr.parts = append(tr.parts, ev.Part)
	case EvRemovePartition:
		tr.parts = slices.DeleteFunc(tr.parts, func(n uint32) bool { return n == ev.Part })
	case EvConfigure:
		if s := a.settings(); a.has("version") {
			ev.Settings = &s
		}
		ev.SampleRate = 0
		ev.PartsAll = uint32(a.int("all"))
	case EvConfirmsCommitted:
		if !a.has("take") {
			ev.Take = tr.c.LastTake(ev.Part)
		}
	case EvCarried:
		for i := range ev.Deferred {
			ev.Deferred[i].At += 7
		}
	case EvOffer, EvOfferRun:
		if !a.has("msg") {
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

func idText(id ID) string { return fmt.Sprintf("%d:%d", id.Partition(), id.MsgID()) }

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

func (tr *transcript) tagOf(id ID) uint64 { return tr.tags[id] }

func (tr *transcript) take(part uint32) {
	for _, ct := range tr.c.TakeControls(part, nil) {
		switch ct.Kind {
		case Confirmed:
			tr.say("confirmed %s", rangesText(ct.Ranges))
		case Deferred:
			for _, d := range ct.Deferrals {
				tr.say("deferred %d until %d, attempts %d", d.ID, d.DueMs-transcriptStartMs, d.Attempts)
			}
		case ChannelPaused:
			tr.say("paused %v", ct.Flag)
		case ChannelSkipped:
			tr.say("skipped %v", ct.Flag)
		case ChannelReset:
			tr.say("reset to %d", ct.ID)
		case ChannelConfigured:
			tr.say("configured version %d, order %v, max attempts %d",
				ct.Settings.Version, ct.Settings.Order, ct.Settings.MaxAttempts)
		case DeadLettered:
			for _, d := range ct.Dead {
				tr.say("dead letter %d, attempts %d", d.ID, d.Attempts)
			}
		case DeadLetterMoved:
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

func rangesText(rs []IDRange) string {
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
