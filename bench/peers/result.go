package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// report is everything that was measured, in one or more calls of this program that appended to the same file.
type report struct {
	Peers []peer `json:"peers"`
	Works []work `json:"works"`
	Calls []call `json:"calls"`
	Runs  []done `json:"runs"`
}

// call describes one run of this program: the machine, the versions and the flags on which its figures depend.
type call struct {
	Start      time.Time         `json:"start"`
	Processors string            `json:"processors"`
	Kernel     string            `json:"kernel"`
	Commits    []commit          `json:"commits"` // of the device, before and after
	Seconds    float64           `json:"seconds"`
	Messages   int64             `json:"messages"`
	Rate       int               `json:"rate"`
	Versions   map[string]string `json:"versions"`
	Missing    map[string]string `json:"missing,omitempty"` // peers that could not be had, and why
}

// done has the figures of one peer in one round of one call.
type done struct {
	Call  int    `json:"call"`
	Round int    `json:"round"`
	Peer  string `json:"peer"`
	Work  string `json:"work"`
	sample
	Error string `json:"error,omitempty"`
}

const resultsFile = "comparison.json"

// encode writes each call and each run on a line of its own, so that `git diff` shows which runs were added.
func (r *report) encode() ([]byte, error) {
	var b bytes.Buffer
	var err error
	part := func(name, end string, of func(func(any))) {
		fmt.Fprintf(&b, "%q: [", name)
		sep := "\n"
		of(func(one any) {
			text, e := json.Marshal(one)
			err = errors.Join(err, e)
			b.WriteString(sep)
			b.Write(text)
			sep = ",\n"
		})
		b.WriteString("\n]" + end + "\n")
	}
	b.WriteString("{")
	part("peers", ",", func(add func(any)) { each(r.Peers, add) })
	part("works", ",", func(add func(any)) { each(r.Works, add) })
	part("calls", ",", func(add func(any)) { each(r.Calls, add) })
	part("runs", "}", func(add func(any)) { each(r.Runs, add) })
	return b.Bytes(), err
}

func each[T any](of []T, do func(any)) {
	for _, one := range of {
		do(one)
	}
}

// load reads the report that a call appends to. A file that is not there is an empty report.
func load(path string) (*report, error) {
	r := new(report)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	return r, json.Unmarshal(text, r)
}

// join adds the peers and works that the report does not have yet, and brings all into the order of the program.
func (r *report) join(peers, known []peer, works []work) {
	for _, p := range peers {
		if !slices.ContainsFunc(r.Peers, func(q peer) bool { return p.Name == q.Name }) {
			r.Peers = append(r.Peers, p)
		}
	}
	for _, w := range works {
		if !slices.ContainsFunc(r.Works, func(v work) bool { return w.Name == v.Name }) {
			r.Works = append(r.Works, w)
		}
	}
	place := func(p peer) int { return slices.IndexFunc(known, func(q peer) bool { return p.Name == q.Name }) }
	slices.SortStableFunc(r.Peers, func(a, b peer) int { return place(a) - place(b) })
	turn := func(w work) int { return slices.IndexFunc(allWorks, func(v work) bool { return w.Name == v.Name }) }
	slices.SortStableFunc(r.Works, func(a, b work) int { return turn(a) - turn(b) })
}

// of returns the runs of a work by a peer, without those that failed.
func (r *report) of(peer, work string) []done {
	var all []done
	for _, d := range r.Runs {
		if d.Peer == peer && d.Work == work && d.Error == "" {
			all = append(all, d)
		}
	}
	return all
}

// values takes one number of each run.
func values(of []done, number func(*done) float64) []float64 {
	all := make([]float64, len(of))
	for i := range of {
		all[i] = number(&of[i])
	}
	return all
}

func rate(d *done) float64 { return d.Rate }
func p50(d *done) float64  { return d.P50 }
func p99(d *done) float64  { return d.P99 }

// ratios compares a peer with its base, round by round, so that each ratio has two runs of the same round of the same
// call. A ratio above 1 says that the base is faster: it has more messages a second, or, if the work is paced, a
// shorter latency.
func (r *report) ratios(p *peer, w *work, number func(*done) float64) []float64 {
	var all []float64
	bases := r.of(p.Base, w.Name)
	for _, d := range r.of(p.Name, w.Name) {
		for _, b := range bases {
			if b.Call != d.Call || b.Round != d.Round {
				continue
			}
			ratio := number(&b) / number(&d)
			if w.Paced {
				ratio = 1 / ratio
			}
			all = append(all, ratio)
		}
	}
	return all
}

// span has the median, the smallest and the largest of some values.
type span struct{ median, low, high float64 }

func spanOf(values []float64) span {
	if len(values) == 0 {
		return span{}
	}
	v := slices.Sorted(slices.Values(values))
	m := v[len(v)/2]
	if len(v)%2 == 0 {
		m = (m + v[len(v)/2-1]) / 2
	}
	return span{median: m, low: v[0], high: v[len(v)-1]}
}
