package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/faultaio"
)

func configure(t testing.TB, topic *node.Topic, change func(*meta.TopicSettings)) meta.TopicSettings {
	t.Helper()
	s := topic.Settings()
	change(&s)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := topic.ConfigureAs(ctx, "", s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A change of settings compares their version. Settings survive a restart and a crash, belong to one topic, and are not
// changed by an invalid request.
//
// B87
func TestTopicSettings(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	fresh := meta.TopicSettings{Partitions: 1, Durability: meta.DurabilitySynced}
	if s := topic.Settings(); s != fresh {
		t.Errorf("a new topic has %+v", s)
	}
	want := meta.TopicSettings{
		RetentionBytes: -1, RetentionCount: 10, RetentionAgeMs: 1000,
		QuotaBytes: 5 << 20, QuotaCount: 7, QuotaMode: meta.QuotaDropOldest, MinISR: 1,
	}
	got, err := topic.ConfigureAs(t.Context(), "", want)
	want.Version, want.Partitions, want.Durability = 1, fresh.Partitions, fresh.Durability
	if err != nil || got != want || topic.Settings() != want {
		t.Fatalf("%+v, %v", got, err)
	}
	for name, c := range map[string]struct {
		s    meta.TopicSettings
		want error
	}{
		"the version of before": {meta.TopicSettings{}, errs.ErrVersion},
		"a version to come":     {meta.TopicSettings{Version: 2}, errs.ErrVersion},
		"min_isr":               {meta.TopicSettings{Version: 1, MinISR: 2}, meta.ErrSettings},
		"below 0":               {meta.TopicSettings{Version: 1, QuotaBytes: -1}, meta.ErrSettings},
		"mode":                  {meta.TopicSettings{Version: 1, QuotaMode: "drop"}, meta.ErrSettings},
	} {
		if got, err := topic.ConfigureAs(t.Context(), "", c.s); !errors.Is(err, c.want) || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	topicOf(t, e, "other")
	after := func(e *node.Engine) {
		t.Helper()
		for name, s := range map[string]meta.TopicSettings{"t": want, "other": fresh} {
			if topic, _ := e.Catalog().LookupTopic(name); topic.Settings() != s {
				t.Errorf("topic %s has %+v afterwards, not %+v", name, topic.Settings(), s)
			}
		}
	}
	after(openOnDisk(t, disk.Crash(1)))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	after(openOnDisk(t, disk.Kill(1)))
	if _, err := topic.ConfigureAs(t.Context(), "", want); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Wherever a crash happens while settings are changed, afterwards they are the old ones or the new ones, and the new
// ones if the caller was answered OK.
//
// B87, B43
func TestTopicSettingsCrash(t *testing.T) {
	const points = 14
	told := 0
	for after := range points {
		disk := newDisk()
		e := openOnDisk(t, disk)
		topic := topicOf(t, e, "t")
		publish(t, topic, "kept")
		old := configure(t, topic, func(s *meta.TopicSettings) { s.QuotaCount = 100 })
		disk.CrashAt(disk.Ops() + after)
		next := old
		next.QuotaCount = 200
		_, err := topic.ConfigureAs(t.Context(), "", next)
		next.Version++
		if err == nil {
			told++
		}
		_ = e.Close() // the disk is gone, most often
		e = openOnDisk(t, disk.Crash(uint64(after)))
		topic, ok := e.Catalog().LookupTopic("t")
		if !ok {
			t.Fatalf("a crash after %d operations takes the topic away", after)
		}
		if s := topic.Settings(); s != next && (err == nil || s != old) {
			t.Errorf("a crash after %d operations leaves %+v, told %v", after, s, err)
		}
		if got := readAll(t, channelOf(t, topic, "c")); len(got) != 1 {
			t.Errorf("a crash after %d operations leaves the messages %v", after, got)
		}
		e.Close()
	}
	if told == 0 || told == points {
		t.Errorf("%d of %d changes were told done: the crashes do not fall into the change", told, points)
	}
}

// A quota in reject mode: exactly the allowed amount is stored. A put beyond that is refused as a whole and leaves no
// trace. Consuming and the commands on channels go on; confirmations make room, and so does a larger quota. Other
// topics are not concerned.
//
// Compare B20: that bounds the bytes that wait, this the bytes that are kept. B4 (a distinct error and no trace).
func TestQuotaReject(t *testing.T) {
	const body = 1000
	for name, set := range map[string]func(*meta.TopicSettings){
		"count": func(s *meta.TopicSettings) { s.QuotaCount = 50 },
		"bytes": func(s *meta.TopicSettings) { s.QuotaBytes = 60_000 },
	} {
		t.Run(name, func(t *testing.T) {
			disk := newDisk()
			e := openOnDisk(t, disk)
			topic := topicOf(t, e, "t")
			ch := channelOf(t, topic, "c")
			s := configure(t, topic, set)
			first := fillQuota(t, topic, body)
			if s.QuotaCount != 0 && first != 50 {
				t.Errorf("%d messages were stored, the quota is 50", first)
			}
			if stored := e.Stats("t", "")[0].StoredBytes; s.QuotaBytes != 0 && (first < 45 || stored > s.QuotaBytes+8192) {
				t.Errorf("%d messages, %d bytes were stored; the quota is %d", first, stored, s.QuotaBytes)
			}
			if _, err := topic.PublishBatch(context.Background(), make2(3, body)); !errors.Is(err, errs.ErrQuota) {
				t.Errorf("a batch: %v", err)
			}
			publish(t, topicOf(t, e, "free"), numbered("m", 60, body)...)
			channelOf(t, topic, "late")
			if err := ch.Pause(t.Context()); err != nil {
				t.Error(err)
			}
			if err := ch.Unpause(t.Context()); err != nil {
				t.Error(err)
			}
			if err := topic.DeleteChannel(t.Context(), "late"); err != nil {
				t.Error(err)
			}

			consumer := subscribe(t, ch, 500)
			consumer.take(10)
			more := 0
			eventually(t, "ten confirmed messages make room for eight", func() bool {
				if _, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: make([]byte, body)}); err == nil {
					more++
				}
				return more == 8
			})
			if more += fillQuota(t, topic, body); more > 10 {
				t.Errorf("ten confirmed messages made room for %d", more)
			}
			consumer.Close()

			// A restart finds the same state.
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			e = openOnDisk(t, disk.Kill(1))
			topic, _ = e.Catalog().LookupTopic("t")
			ch, _ = topic.LookupChannel("c")
			if n := fillQuota(t, topic, body); n > 2 {
				t.Errorf("after a restart %d more were stored", n)
			}
			configure(t, topic, func(s *meta.TopicSettings) { s.QuotaBytes, s.QuotaCount = 10*s.QuotaBytes, 10*s.QuotaCount })
			publish(t, topic, "larger")
			configure(t, topic, func(s *meta.TopicSettings) { s.QuotaBytes, s.QuotaCount = 1, 1 })
			if _, err := topic.PublishMessage(t.Context(), node.Outgoing{
				Body: make([]byte, body),
			}); !errors.Is(err, errs.ErrQuota) {
				t.Errorf("with a quota below what is there: %v", err)
			}
			if got := readAll(t, ch); len(got) < first || len(got) > first+4 {
				t.Errorf("%d messages were left", len(got))
			}
			configure(t, topic, func(s *meta.TopicSettings) { s.QuotaBytes, s.QuotaCount = 0, 0 })
			publish(t, topic, numbered("m", 60, body)...)
		})
	}
}

// A quota counts what waits, not what lies behind it: one delayed message, or one that a consumer keeps, leaves room
// for all others that are finished. What waits behind it counts, and so does what a channel wants again.
func TestQuotaCountsWhatWaits(t *testing.T) {
	const body = 1000
	for name, set := range map[string]func(*meta.TopicSettings){
		"count": func(s *meta.TopicSettings) { s.QuotaCount = 20 },
		"bytes": func(s *meta.TopicSettings) { s.QuotaBytes = 24_000 },
	} {
		t.Run(name, func(t *testing.T) {
			e := openOnDisk(t, newDisk())
			topic := topicOf(t, e, "t")
			ch := channelOf(t, topic, "c")
			configure(t, topic, set)
			if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: make([]byte, body), Delay: time.Hour}); err != nil {
				t.Fatal(err)
			}
			consumer := subscribe(t, ch, 500)
			for i := range 100 {
				eventually(t, "finished messages make room", func() bool {
					_, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: make([]byte, body)})
					if err != nil && !errors.Is(err, errs.ErrQuota) {
						t.Fatal(i, err)
					}
					return err == nil
				})
				consumer.take(1)
			}
			consumer.Close()
			room := 0
			eventually(t, "the quota leaves room for what does not wait", func() bool {
				room += fillQuota(t, topic, body)
				return room >= 18
			})
			if room > 22 {
				t.Errorf("%d messages wait beside the delayed one", room)
			}
			consumer = subscribe(t, ch, 500)
			consumer.take(room)
			consumer.Close()
			eventually(t, "finished messages make room", func() bool {
				_, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: make([]byte, body)})
				return err == nil
			})
			if err := ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekBeginning}); err != nil {
				t.Fatal(err)
			}
			if n := fillQuota(t, topic, body); n != 0 {
				t.Errorf("%d messages were stored after a seek to the beginning", n)
			}
		})
	}
}

// fillQuota publishes bodies of size bytes until the quota refuses one, and returns how many were stored.
func fillQuota(t *testing.T, topic *node.Topic, size int) (n int) {
	t.Helper()
	for ; ; n++ {
		_, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: make([]byte, size)})
		if errors.Is(err, errs.ErrQuota) {
			return n
		}
		if err != nil || n > 100 {
			t.Fatalf("message %d: %v", n, err)
		}
	}
}

func make2(n, size int) (bodies [][]byte) {
	for range n {
		bodies = append(bodies, make([]byte, size))
	}
	return bodies
}

// A topic's own retention, and a quota that drops the oldest, remove whole segments, the oldest first, confirmed or
// not, and never the last one. The node's limits hold for the other topics, and a topic can switch them off.
//
// B39, B67, B87
func TestTopicRetention(t *testing.T) {
	t.Parallel()
	const body, least = 1500, 300 << 10
	for name, set := range map[string]func(*meta.TopicSettings){
		"bytes":      func(s *meta.TopicSettings) { s.RetentionBytes = 200 << 10 },
		"count":      func(s *meta.TopicSettings) { s.RetentionCount = 130 },
		"age":        func(s *meta.TopicSettings) { s.RetentionAgeMs = 50 },
		"drop bytes": func(s *meta.TopicSettings) { s.QuotaBytes, s.QuotaMode = 200<<10, meta.QuotaDropOldest },
		"drop count": func(s *meta.TopicSettings) { s.QuotaCount, s.QuotaMode = 130, meta.QuotaDropOldest },
	} {
		t.Run(name, func(t *testing.T) {
			o := inDir(t.TempDir())
			o.RetentionCount = 1
			e := openWith(t, o)
			keeps := topicOf(t, e, "keeps")
			configure(t, keeps, func(s *meta.TopicSettings) { s.RetentionCount = -1 })
			kept := channelOf(t, keeps, "c")
			topic := topicOf(t, e, "t")
			ch := channelOf(t, topic, "c")
			configure(t, topic, func(s *meta.TopicSettings) {
				s.RetentionCount = -1
				set(s)
			})
			total := 0
			eventually(t, "retention trims", func() bool {
				publish(t, topic, numbered("m", 50, body)...)
				publish(t, keeps, numbered("k", 50, body)...)
				total += 50
				return e.Counters().TrimmedBytes.Load() > least
			})
			if name == "age" { // while they are read, more would become old
				configure(t, topic, func(s *meta.TopicSettings) { s.RetentionAgeMs = -1 })
			}
			got := readAll(t, ch)
			if len(got) == 0 || len(got) >= total {
				t.Errorf("%d of %d messages are left", len(got), total)
			}
			for id := node.ID(total - 1); id > node.ID(total-len(got)); id-- {
				if _, ok := got[id]; !ok {
					t.Errorf("%s is missing between messages that are there", id)
				}
			}
			if n := len(readAll(t, kept)); n != total {
				t.Errorf("the topic without a limit has %d of %d messages", n, total)
			}
			publish(t, topic, "after")
			if got := readAll(t, ch); len(got) != 1 {
				t.Errorf("afterwards came %v", got)
			}
		})
	}
}

// While the disk is nearly full, publishing is refused with a sentence that says so; consuming and confirming go on,
// and publishing comes back by itself. The low-water mark of the disk belongs to the engine, quotas belong to topics.
func TestDiskLowWaterAndQuota(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	configure(t, topic, func(s *meta.TopicSettings) { s.QuotaCount = 1 << 30 })
	acked := map[node.ID]string{publish(t, topic, "first")[0]: "first"}
	disk.SetCapacity(usedBytes(t, disk) + 1<<20)
	fillUntilFull(t, topic, acked)
	_, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("x")})
	if !errors.Is(err, errs.ErrNoSpace) || errors.Is(err, errs.ErrQuota) {
		t.Errorf("on a full disk: %v", err)
	}
	s := subscribe(t, ch, 10)
	m := s.next()
	if acked[m.id] != m.body {
		t.Errorf("%s came as %.40q", m.id, m.body)
	}
	s.finish(m)
	s.Close()
	eventually(t, "the confirmation is stored", func() bool { return channelStats(t, ch).InFlightCount == 0 })
	disk.SetCapacity(faultaio.DefaultCapacityBytes)
	eventually(t, "publishing resumes", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := topic.PublishMessage(ctx, node.Outgoing{Body: fmt.Append(nil, "again")})
		return err == nil
	})
}

// What was answered OK for later is not removed before: a delay that is not shorter than the topic's retention by age
// is refused by name, and so is a retention by age that would remove delayed messages before they are due.
func TestDelayBeyondRetention(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	later := func(delay time.Duration) error {
		_, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: delay})
		return err
	}
	age := func(age time.Duration) error {
		s := topic.Settings()
		s.RetentionAgeMs = age.Milliseconds()
		_, err := topic.ConfigureAs(ctxBg, "", s)
		return err
	}
	setup := errors.Join(age(time.Minute), later(59*time.Second), age(50*time.Minute), later(time.Minute))
	if setup != nil {
		t.Fatal(setup)
	}
	for _, delay := range []time.Duration{50 * time.Minute, time.Hour} {
		if err := later(delay); !errors.Is(err, errs.ErrDeferRetention) || !errors.Is(err, errs.ErrDeferTooLong) {
			t.Errorf("a delay of %v: %v", delay, err)
		}
	}
	publish(t, topic, "now")
	s := subscribe(t, ch, 1)
	if m := s.next(); !errors.Is(s.Requeue(m.id, 50*time.Minute), errs.ErrDeferRetention) ||
		s.Requeue(m.id, time.Second) != nil {
		t.Error("a requeue is not refused by its delay")
	}
	err := age(time.Minute)
	if !errors.Is(err, meta.ErrSettings) || !strings.Contains(err.Error(), " messages of topic t") {
		t.Errorf("a retention that removes delayed messages: %v", err)
	}
	if got := topic.Settings().RetentionAgeMs; got != (50 * time.Minute).Milliseconds() {
		t.Errorf("the retention is %d ms", got)
	}
	if err := errors.Join(age(2*time.Minute), ch.Empty(ctxBg), age(time.Minute)); err != nil {
		t.Error(err)
	}
}
