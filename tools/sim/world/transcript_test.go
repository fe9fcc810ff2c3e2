package world

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"penstock/batch"
	"penstock/internal/node/partition"
	"penstock/segment"
)

var (
	update     = flag.Bool("update", false, "write the golden transcript anew")
	newRecords = flag.Bool("update-records", false, "write the records of the golden transcript anew, from a run")
)

// goldenLie is the seed of the golden transcript, whose store elects who is not in the ISR.
const goldenLie = 2

// The transcript of a lie, from records that were kept. A run of its own would be another one after each change of the
// engine.
func TestTranscriptOfALie(t *testing.T) {
	const records, golden = "testdata/unclean-election.records", "testdata/unclean-election.transcript"
	if *newRecords {
		writeRecords(t, records)
	}
	topic := &topicModel{name: "t0"}
	w := &World{Seed: goldenLie, Violation: "id 0001000000000000 of topic t0 is value 0 and value 108"}
	w.book.values = make([]value, 109)
	for _, v := range []int{0, 108} {
		w.book.values[v] = value{topic: topic, hasID: true, id: batch.MakeID(1, 0)}
	}
	for i, id := range []uint32{3, 1, 2} {
		w.nodes = append(w.nodes, &host{w: w, index: i, name: fmt.Sprintf("n%d", i+1), id: id})
	}
	got := w.transcript(readRecords(t, records))
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the transcript is another one; -update writes it:\n%s", got)
	}
	judgeTranscript(t, got)
}

// judgeTranscript: it is short, and ends with two facts and the promise.
func judgeTranscript(t *testing.T, text string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > 120 || len(lines) < 8 {
		t.Fatalf("the transcript has %d lines:\n%s", len(lines), text)
	}
	for i, begins := range []string{"fact:    ", "against: ", "broken:  "} {
		if line := lines[len(lines)-3+i]; !strings.HasPrefix(line, begins) || len(strings.TrimSpace(line)) < len(begins)+10 {
			t.Errorf("the transcript ends with %q instead of %q", line, begins)
		}
	}
}

// A run that is recorded is the same run.
func TestTranscriptChangesNothing(t *testing.T) {
	cfg := Config{Break: MutantUnclean}
	for seed := range uint64(2) {
		plain := Run(seed, cfg)
		cfg := cfg
		cfg.witness = &witness{}
		if seen := Run(seed, cfg); seen.Hash() != plain.Hash() || seen.Violation != plain.Violation {
			t.Errorf("seed %d: %q with a witness, %q without", seed, seen.Violation, plain.Violation)
		}
	}
	if text := Transcript(1, Config{}); !strings.Contains(text, "breaks no promise") {
		t.Errorf("the transcript of a run that breaks nothing: %s", text)
	}
}

// What the checks say when something is wrong is in the table of promises.
func TestEveryFailureBreaksAPromise(t *testing.T) {
	files := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || name.Sel.Name != "fail" && name.Sel.Name != "failed" {
				return true
			}
			for _, arg := range call.Args {
				text := literal(arg)
				if text == "" || text == "%s: %s: %s" || text == "rule %d: %s" { // what callers say is looked at
					continue
				}
				found++
				if brokenBy(text).means == unnamed {
					t.Errorf("%v: no promise for %q", files.Position(call.Pos()), text)
				}
			}
			return true
		})
	}
	if found < 70 {
		t.Errorf("only %d failures were found", found)
	}
}

// literal is the text of a string in the source, of several that are added, too.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return ""
}

// The records are one a line: the time, the index of a node or -1, and a line of the trace; or else marks, or the end
// of a process.
const marksFormat = "%d %d marks %s leads %t serves %t epoch %d isr %d committed %d durable %d end %d"

func readRecords(t *testing.T, path string) (list []record) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r record
		m := &r.marks
		head := strings.SplitN(lines.Text(), " ", 3)
		r.at, _ = strconv.ParseInt(head[0], 10, 64)
		r.node, _ = strconv.Atoi(head[1])
		switch {
		case r.node < 0:
			r.text = head[2]
		case head[2] == "ended":
			r.ended = true
		default:
			if _, err := fmt.Sscanf(lines.Text(), marksFormat, &r.at, &r.node, &r.part, &m.Leads, &m.Serves, &m.Epoch, &m.ISR,
				&m.Committed, &m.Durable, &m.End); err != nil {
				t.Fatalf("%s: %q: %v", path, lines.Text(), err)
			}
		}
		list = append(list, r)
	}
	return list
}

func writeRecords(t *testing.T, path string) {
	t.Helper()
	x := &witness{}
	w := Run(goldenLie, Config{Break: MutantUnclean, witness: x})
	s := w.subjectOf(w.Violation)
	var b []byte
	for i := range x.records {
		r := &x.records[i]
		m := &r.marks
		switch {
		case r.node < 0 && (s.weigh(r.text) > weighsNothing || strings.HasPrefix(r.text, "VIOLATION")):
			b = fmt.Appendf(b, "%d -1 %s\n", r.at, r.text)
		case r.ended:
			b = fmt.Appendf(b, "%d %d ended\n", r.at, r.node)
		case r.part == s.parts[0]:
			b = fmt.Appendf(b, marksFormat+"\n", r.at, r.node, r.part, m.Leads, m.Serves, m.Epoch, m.ISR, m.Committed, m.Durable,
				m.End)
		}
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A subject is found in a failure's text, and lines are judged by it.
func TestWeigh(t *testing.T) {
	w := &World{}
	w.book.values = []value{{topic: &topicModel{name: "t1"}, hasID: true, id: batch.MakeID(2, 5)}, {}}
	s := w.subjectOf("value 0 of topic t1 was answered OK as 0002000000000005 and never delivered on channel c1")
	if len(s.parts) != 1 || s.parts[0] != "t1/2" || len(s.channels) != 1 {
		t.Fatalf("the subject is %+v", s)
	}
	for line, want := range map[string]int{
		"n1 answers put 0+3 of t1: 0002000000000005 <nil>":      weighsMuch,
		"n1 answers put 1+3 of t1: 0002000000000008 <nil>":      weighsNothing,
		"store: node 1 leads t1/2, epoch 4, isr [1]":            weighsMuch,
		"store: node 1 leads t1/0, epoch 4, isr [1]":            weighsNothing,
		"n2 delivers 0002000000000005 attempt 1 on c1 of t1 []": weighsMuch,
		"n2 delivers 0002000000000005 attempt 1 on c0 of t1 []": weighsNothing,
		"n2 crashes":                                                 weighsSome,
		"n2 is connected to n3":                                      weighsLittle,
		"pause true of channel c0 of t1: <nil>":                      weighsNothing,
		"pause true of channel c1 of t1: <nil>":                      weighsMuch,
		"n2: disk: create spare/0000000001.clog of 131072: <nil>":    weighsNothing,
		"n2: disk: create spare/0000000001.clog of 131072: no space": weighsLittle,
	} {
		if got := s.weigh(line); got != want {
			t.Errorf("%q weighs %d, not %d", line, got, want)
		}
	}
}

// A long history keeps how it began and how it ended.
func TestTranscriptOfMuch(t *testing.T) {
	w := &World{Violation: "n1: t0/0: committed moves back from 9 to 3", nodes: []*host{{name: "n1"}}}
	var list []record
	for i := range 5000 {
		r := record{at: int64(i) * ms, part: "t0/0"}
		r.marks = partition.Marks{Epoch: segment.Epoch(i), End: 9, Durable: 9}
		list = append(list, r, record{at: r.at, node: -1, text: "n2 is connected to n1"})
	}
	list = append(list, record{at: 6000 * ms, node: -1, text: "VIOLATION: " + w.Violation})
	text := w.transcript(list)
	judgeTranscript(t, text)
	for _, want := range []string{"follows in epoch 1;", "follows in epoch 4999;", "9899 more events", "invariant 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
}
