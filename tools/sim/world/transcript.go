package world

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"penstock/batch"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// maxTranscript is how many events a transcript shows. What a person reads in five minutes has 120 lines, its head and
// its end included.
const maxTranscript = 100

// Transcript runs a seed again and tells, in at most 120 lines, what led to its failure: the events of the partition,
// message or channel that the failure names, and the faults around them. Any goroutine may call it.
func Transcript(seed uint64, cfg Config) string {
	x := &witness{}
	cfg.witness, cfg.Trace, cfg.Engine = x, nil, nil
	w := Run(seed, cfg)
	if w.Violation == "" {
		return fmt.Sprintf("seed %d breaks no promise\n", seed)
	}
	return w.transcript(x.records)
}

func (w *World) transcript(records []record) string {
	t := &transcript{w: w, about: w.subjectOf(w.Violation), nodes: map[int]*belief{}, ids: map[string]string{}}
	for _, n := range w.nodes {
		t.nodes[n.index], t.ids[strconv.Itoa(int(n.id))] = &belief{part: map[string]partition.Marks{}}, n.name
	}
	for i := range records {
		t.read(&records[i])
	}
	return t.text()
}

// subject is what a failure is about, as its text says: names as the trace writes them, and numbers of values.
type subject struct {
	values                       []int
	ids, parts, topics, channels []string
	nodes                        []string
	placed                       segment.Position // the message lies below it; 0: unknown
}

var (
	partText     = regexp.MustCompile(`\bt\d+(?:\.DLQ)?/\d+\b`)
	topicText    = regexp.MustCompile(`\bt\d+(?:\.DLQ)?\b`)
	channelText  = regexp.MustCompile(`\bc\d+\b`)
	nodeText     = regexp.MustCompile(`\bn\d\b`)
	idText       = regexp.MustCompile(`\b[0-9a-f]{16}\b`)
	valueText    = regexp.MustCompile(`\bvalues? (\d+)\b`)
	numberText   = regexp.MustCompile(`\bpartition (\d+)\b`)
	placeText    = regexp.MustCompile(`\b(?:after|after that of|has seen) (\d+)\b`)
	putText      = regexp.MustCompile(`^n\d answers put (\d+)\+(\d+) of `)
	registerText = regexp.MustCompile(`^store: (n\d) registers as node (\d+)$`)
	endText      = regexp.MustCompile(`^(crashes|is killed: .*|has stopped: .*|gets an empty disk)$`)
	storeText    = regexp.MustCompile(`\bnode \d+\b`)
	isrText      = regexp.MustCompile(`\bisr \[[\d ]+\]`)
	epochText    = regexp.MustCompile(`\bepoch \d+\b`)
	finalText    = regexp.MustCompile(`^n\d (delivers|finishes) `)
)

// subjectOf reads a failure's text. A value leads to its message, and a message to its partition.
func (w *World) subjectOf(text string) *subject {
	s := &subject{
		ids: idText.FindAllString(text, -1), parts: partText.FindAllString(text, -1),
		topics: topicText.FindAllString(text, -1), channels: channelText.FindAllString(text, -1),
		nodes: nodeText.FindAllString(text, -1),
	}
	for _, m := range valueText.FindAllStringSubmatch(text, -1) {
		if v, err := strconv.Atoi(m[1]); err == nil && v < len(w.book.values) {
			s.values = append(s.values, v)
		}
	}
	for _, v := range s.values {
		val := &w.book.values[v]
		s.topics = append(s.topics, val.topic.name)
		if val.hasID {
			s.ids = append(s.ids, val.id.String())
		}
	}
	var numbers []string
	for _, m := range numberText.FindAllStringSubmatch(text, -1) {
		numbers = append(numbers, m[1])
	}
	for _, id := range s.ids {
		if n, err := strconv.ParseUint(id, 16, 64); err == nil {
			numbers = append(numbers, strconv.Itoa(int(batch.ID(n).Partition())))
		}
	}
	for _, m := range placeText.FindAllStringSubmatch(text, -1) {
		id, _ := strconv.Atoi(m[1])
		for _, number := range numbers {
			n, _ := strconv.Atoi(number)
			s.ids = append(s.ids, batch.MakeID(uint32(n), segment.MsgID(id)).String())
		}
	}
	for _, topic := range s.topics {
		for _, number := range numbers {
			s.parts = append(s.parts, topic+"/"+number)
		}
	}
	for _, list := range []*[]string{&s.ids, &s.parts, &s.topics, &s.channels, &s.nodes} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	slices.Sort(s.values)
	s.values = slices.Compact(s.values)
	return s
}

// How much an event says of the subject. What weighs nothing is left out.
const (
	weighsNothing = iota
	weighsLittle  // connections, consumers
	weighsSome    // faults and lives of nodes
	weighsMuch    // it names the subject
)

// weigh judges a line of the trace.
func (s *subject) weigh(line string) int {
	switch m := putText.FindStringSubmatch(line); {
	case m != nil:
		first, _ := strconv.Atoi(m[1])
		count, _ := strconv.Atoi(m[2])
		return weight(slices.ContainsFunc(s.values, func(v int) bool { return first <= v && v < first+count }), weighsMuch)
	case finalText.MatchString(line):
		ours := meets(line, idText, s.ids) && (len(s.channels) == 0 || meets(line, channelText, s.channels))
		return weight(ours, weighsMuch)
	case strings.Contains(line, ": disk: ") && strings.HasSuffix(line, ": <nil>"), strings.HasPrefix(line, "{"),
		strings.HasPrefix(line, "VIOLATION: "):
		return weighsNothing
	case partText.MatchString(line):
		return weight(meets(line, partText, s.parts), weighsMuch)
	case topicText.MatchString(line):
		ours := meets(line, topicText, s.topics) && (!channelText.MatchString(line) || meets(line, channelText, s.channels))
		if strings.Contains(line, " subscribes to ") {
			return weight(ours, weighsLittle)
		}
		return weight(ours, weighsMuch)
	case strings.Contains(line, " is connected to "), strings.Contains(line, " lost the connection to "),
		strings.Contains(line, ": disk: "), strings.Contains(line, ": the end of "):
		return weighsLittle
	case len(s.parts) == 0 && meets(line, nodeText, s.nodes):
		return weighsMuch
	}
	return weighsSome
}

func weight(yes bool, as int) int {
	if yes {
		return as
	}
	return weighsNothing
}

// meets says that a line has one of these names.
func meets(line string, kind *regexp.Regexp, names []string) bool {
	return slices.ContainsFunc(kind.FindAllString(line, -1), func(s string) bool { return slices.Contains(names, s) })
}

// belief is what a node takes itself for, as far as the events so far say.
type belief struct {
	up    bool
	knows bool                       // this process has told of the subject's partition
	part  map[string]partition.Marks // also of the process before
}

// told is an event that a transcript may show.
type told struct {
	at           int64
	node, role   string
	what         string
	weight       int
	order, times int   // its place among all; how often it came in a row
	away         int64 // see measure
}

type transcript struct {
	w      *World
	about  *subject
	nodes  map[int]*belief
	events []told
	asked  bool              // the message of the subject was answered, and no leader's marks came since
	ids    map[string]string // names of nodes by their numbers in the store
	failed int64
}

// read takes the next record.
func (t *transcript) read(r *record) {
	if t.failed > 0 { // what follows shows the copies as they are
		return
	}
	if r.node < 0 {
		t.readLine(r)
		return
	}
	b := t.nodes[r.node]
	name := t.w.nodes[r.node].name
	if r.ended {
		b.up, b.knows = false, false
		return
	}
	b.up = true
	if !slices.Contains(t.about.parts, r.part) {
		return
	}
	b.knows = true
	old := b.part[r.part]
	b.part[r.part] = r.marks
	if t.asked && r.marks.Leads {
		t.asked, t.about.placed = false, r.marks.Committed
	}
	if what := t.changed(&old, &r.marks); what != "" {
		if len(t.about.parts) > 1 {
			what = r.part + ": " + what
		}
		t.tell(r.at, name, t.role(name), what, weighsMuch)
	}
}

func (t *transcript) readLine(r *record) {
	weight := t.about.weigh(r.text)
	if strings.HasPrefix(r.text, "VIOLATION: ") {
		t.failed = r.at
	}
	if m := registerText.FindStringSubmatch(r.text); m != nil {
		t.ids[m[2]] = m[1]
	}
	if weight == weighsNothing {
		return
	}
	if putText.MatchString(r.text) {
		t.asked = strings.HasSuffix(r.text, " <nil>")
	}
	who, what := "", t.plain(r.text)
	if name := nodeText.FindString(what); strings.HasPrefix(what, name+" ") || strings.HasPrefix(what, name+": ") {
		who, what = name, strings.TrimLeft(what[len(name):], ": ")
	} else if strings.HasPrefix(what, "store: ") {
		who, what = "store", strings.TrimPrefix(what, "store: ")
	}
	b := t.nodes[t.index(who)]
	switch {
	case b == nil:
	case what == "is open":
		b.up = true
	case b.knows && endText.MatchString(what): // the end of a process that has a copy
		weight = weighsMuch
	}
	t.tell(r.at, who, t.role(who), what, weight)
}

// plain gives nodes their names, and says OK where there was no error.
func (t *transcript) plain(line string) string {
	if registerText.MatchString(line) {
		return line
	}
	named := func(number string) string { return cmp.Or(t.ids[number], "node "+number) }
	line = storeText.ReplaceAllStringFunc(line, func(s string) string { return named(strings.TrimPrefix(s, "node ")) })
	line = isrText.ReplaceAllStringFunc(line, func(s string) string {
		numbers := strings.Fields(s[len("isr [") : len(s)-1])
		for i := range numbers {
			numbers[i] = named(numbers[i])
		}
		return "isr [" + strings.Join(numbers, " ") + "]"
	})
	if ok, cut := strings.CutSuffix(line, "<nil>"); cut {
		return ok + "OK"
	}
	return line
}

// index is that of a node's name; -1: it is none.
func (t *transcript) index(name string) int {
	return slices.IndexFunc(t.w.nodes, func(n *host) bool { return n.name == name })
}

// changed says what is new in the marks of a copy: its role, a log that got shorter, and when it reaches or loses the
// place of the message.
func (t *transcript) changed(old, now *partition.Marks) string {
	var what []string
	switch {
	case old.Leads != now.Leads || old.Epoch != now.Epoch:
		if what = append(what, "follows in epoch "+strconv.Itoa(int(now.Epoch))); now.Leads {
			what[0] = fmt.Sprintf("leads epoch %d, ISR of %d", now.Epoch, now.ISR)
		}
	case old.ISR != now.ISR:
		what = append(what, fmt.Sprintf("has an ISR of %d", now.ISR))
	}
	if old.Serves != now.Serves {
		what = append(what, map[bool]string{true: "begins to deliver", false: "delivers nothing any more"}[now.Serves])
	}
	if now.Drops > old.Drops {
		what = append(what, "gives its copy up")
	}
	if now.Retired > old.Retired {
		what = append(what, "closes its copy: it is no replica")
	}
	if now.Stuck && !old.Stuck {
		what = append(what, "its copy stops")
	}
	if now.Cutting && !old.Cutting {
		what = append(what, "cuts its log")
	}
	p := t.about.placed
	passed := func(a, b segment.Position) bool { return p > 0 && (a >= p) != (b >= p) }
	if now.End < old.End || passed(old.End, now.End) || passed(old.Durable, now.Durable) ||
		passed(old.Committed, now.Committed) || len(what) > 0 {
		what = append(what, fmt.Sprintf("log to %d, durable to %d, committed to %d", now.End, now.Durable, now.Committed))
	}
	if now.End < old.End {
		what[len(what)-1] += fmt.Sprintf("; it was to %d", old.End)
	}
	return strings.Join(what, "; ")
}

// role is what a node takes itself for: off, up, or its part in the partition, with the epoch.
func (t *transcript) role(name string) string {
	b := t.nodes[t.index(name)]
	switch {
	case b == nil:
		return ""
	case !b.up:
		return "off"
	case len(t.about.parts) != 1:
		return "up"
	}
	m := b.part[t.about.parts[0]]
	switch {
	case !b.knows:
		return "no copy yet"
	case m.Stuck:
		return "stopped"
	case m.Leads && !m.Serves:
		return fmt.Sprintf("leads %d, mute", m.Epoch)
	case m.Leads:
		return fmt.Sprintf("leads %d", m.Epoch)
	}
	return fmt.Sprintf("follows %d", m.Epoch)
}

func (t *transcript) tell(at int64, node, role, what string, weight int) {
	if n := len(t.events); n > 0 {
		if last := &t.events[n-1]; last.node == node && last.what == what {
			last.times++
			return
		}
	}
	t.events = append(t.events, told{at, node, role, what, weight, len(t.events), 1, 0})
}

// chosen are the events that are shown: of the subject its first and its latest ones, then the faults and the lives of
// nodes that are nearest to these.
func (t *transcript) chosen() []told {
	list := slices.Clone(t.events)
	much := 0
	for i := range list {
		if list[i].weight == weighsMuch {
			if much++; much <= maxTranscript/4 {
				list[i].weight++ // how it began
			}
		}
	}
	t.measure(list)
	slices.SortFunc(list, func(a, b told) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.away, b.away), cmp.Compare(b.order, a.order))
	})
	list = list[:min(len(list), maxTranscript)]
	slices.SortFunc(list, func(a, b told) int { return cmp.Compare(a.order, b.order) })
	return list
}

// measure says of each event of nodes how long before or after the nearest one of the subject it was. Without any, the
// end counts.
func (t *transcript) measure(list []told) {
	near := int64(-1)
	for i := range list {
		if e := &list[i]; e.weight >= weighsMuch {
			near = e.at
		} else if e.away = t.failed; near >= 0 {
			e.away = e.at - near
		}
	}
	near = t.failed
	for i := len(list) - 1; i >= 0; i-- {
		if e := &list[i]; e.weight >= weighsMuch {
			near = e.at
		} else {
			e.away = min(e.away, near-e.at)
		}
	}
}

func (e *told) String() string {
	s := fmt.Sprintf("%10.3f %-5s %-14s %s", float64(e.at)/1e6, e.node, e.role, e.what)
	if e.times > 1 {
		s += fmt.Sprintf(" (%d times)", e.times)
	}
	return shortened(s)
}

// says compares as if the event were a line of the trace.
func (e *told) says(text string) bool {
	return strings.Contains(" "+e.node+" "+e.what, text) || strings.Contains(" "+e.node+": "+e.what, text)
}

// shortened cuts a long line.
func shortened(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// fact is the event that a promise rests on: one of its kind, before the failure, of a message or a node that the
// failure names. Of several it is the first if it is an answer or of an epoch that the failure names, or else the last.
func (t *transcript) fact(p *promise) string {
	epoch := epochText.FindString(t.w.Violation)
	for _, says := range p.rests {
		first := epoch != "" || slices.Contains(saysAnswerOf, says)
		var found *told
		best := -1
		for i := range t.events {
			e := &t.events[i]
			if e.weight == weighsLittle || !e.says(says) || !strings.Contains(e.what, epoch) {
				continue
			}
			score := 0
			if e.at < t.failed {
				score += 4
			}
			if meets(e.what, idText, t.about.ids) {
				score += 2
			}
			if slices.Contains(t.about.nodes, e.node) || meets(e.what, nodeText, t.about.nodes) {
				score++
			}
			if score > best || score == best && !first {
				found, best = e, score
			}
		}
		if found != nil {
			return found.String()
		}
	}
	for _, least := range []int{weighsMuch, weighsSome} {
		for _, e := range slices.Backward(t.events) {
			if e.weight >= least {
				return e.String()
			}
		}
	}
	return "nothing happened before"
}

func (t *transcript) text() string {
	var b strings.Builder
	w, s := t.w, t.about
	fmt.Fprintf(&b, "transcript of seed %d (%v), times in ms", w.Seed, w.Features())
	for _, about := range []struct {
		what  string
		names []string
	}{{"partition", s.parts}, {"channel", s.channels}, {"message", s.ids}} {
		if len(about.names) > 0 {
			fmt.Fprintf(&b, "; %s %s", about.what, strings.Join(about.names, ", "))
		}
	}
	if s.placed > 0 {
		fmt.Fprintf(&b, "; the message lies below place %d of the log", s.placed)
	}
	b.WriteString("\nthe third column is what the node believes: its role, with the epoch that it knows\n\n")
	list := t.chosen()
	for i := range list {
		fmt.Fprintln(&b, list[i].String())
	}
	if left := len(t.events) - len(list); left > 0 {
		fmt.Fprintf(&b, "(%d more events; -v shows everything)\n", left)
	}
	p := brokenBy(w.Violation)
	text, _, _ := strings.Cut(w.Violation, "\n")
	fmt.Fprintf(&b, "\nfact:    %s\nagainst: %10.3f %s\nbroken:  %s\n", t.fact(p), float64(t.failed)/1e6,
		text, p.means)
	return b.String()
}
