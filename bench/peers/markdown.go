package main

import (
	_ "embed"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// intro is what the page says before its tables.
//
//go:embed intro.md
var intro string

// markdown writes the tables of the report.
func (r *report) markdown(w io.Writer) error {
	var b strings.Builder
	r.header(&b)
	r.legend(&b)
	for _, nodes := range r.sizes() {
		r.table(&b, nodes)
	}
	_, err := io.WriteString(w, strings.TrimSuffix(b.String(), "\n"))
	return err
}

// document writes the page with its plots, which are in the directory plots beside it.
func (r *report) document(w io.Writer) error {
	if _, err := io.WriteString(w, intro); err != nil {
		return err
	}
	if err := r.markdown(w); err != nil {
		return err
	}
	var b strings.Builder
	for _, nodes := range r.sizes() {
		head := fmt.Sprintf("\n## Plots: %s\n\n", title(nodes))
		for i := range r.Works {
			if peers, _ := r.bars(&r.Works[i], nodes); len(peers) > 0 {
				fmt.Fprintf(&b, "%s![%s](plots/%s)\n", head, r.Works[i].Name, plotName(&r.Works[i], nodes))
				head = ""
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// sizes are the numbers of nodes that peers of this report have.
func (r *report) sizes() []int {
	return slices.DeleteFunc([]int{1, 3}, func(nodes int) bool {
		return !slices.ContainsFunc(r.Peers, func(p peer) bool { return p.Nodes == nodes })
	})
}

func title(nodes int) string {
	if nodes == 1 {
		return "one node"
	}
	return "three nodes"
}

// header says what the figures depend on.
func (r *report) header(b *strings.Builder) {
	var commits []commit
	var machines, spans, messages, paces, days []string
	add := func(to *[]string, text string) {
		if !slices.Contains(*to, text) {
			*to = append(*to, text)
		}
	}
	for i := range r.Calls {
		c := &r.Calls[i]
		commits = append(commits, c.Commits...)
		add(&machines, c.Processors+", "+c.Kernel)
		add(&spans, fmt.Sprintf("%g s", c.Seconds))
		add(&messages, count(float64(c.Messages)))
		add(&paces, count(float64(c.Rate)))
		add(&days, c.Start.UTC().Format("2006-01-02"))
	}
	p50s := spanOf(collect(commits, func(c commit) float64 { return c.P50 }))
	p99s := spanOf(collect(commits, func(c commit) float64 { return c.P99 }))
	fmt.Fprintf(b, "| | |\n|---|---|\n| machine | %s; clients and servers on the same processors |\n",
		strings.Join(machines, "; "))
	fmt.Fprintf(b, "| the device's own durable 4 KiB write (O_DIRECT, O_DSYNC) | p50 %s, p99 %s |\n",
		interval(p50s, latency), interval(p99s, latency))
	fmt.Fprintf(b, "| measured | %s, in %d calls; each publishing work for %s; a backlog of %s messages; "+
		"a steady rate of %s msg/s; bodies of %d bytes |\n\n", strings.Join(days, ", "), len(r.Calls),
		strings.Join(spans, " or "), strings.Join(messages, " or "), strings.Join(paces, " or "), bodyBytes)
}

func collect[T any](from []T, number func(T) float64) []float64 {
	all := make([]float64, len(from))
	for i, one := range from {
		all[i] = number(one)
	}
	return all
}

// legend says of each peer what it is and what its OK means.
func (r *report) legend(b *strings.Builder) {
	b.WriteString("| server | version | an acknowledged message is |\n|---|---|---|\n")
	for _, p := range r.Peers {
		says, missing := "", ""
		for _, c := range r.Calls {
			if v := c.Versions[p.Name]; v != "" {
				says = v
			}
			if m := c.Missing[p.Name]; m != "" {
				missing = m
			}
		}
		if says == "" {
			says = "left out: " + missing
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", p.Name, cell(says), p.OK)
	}
	b.WriteString("\n")
}

// table has a row for each work and peer.
func (r *report) table(b *strings.Builder, nodes int) {
	fmt.Fprintf(b, "| %s | server | msg/s | p50 / p99 | server, client µs a message | Penstock is × |\n", title(nodes))
	b.WriteString("|---|---|---|---|---|---|\n")
	for i := range r.Works {
		w := &r.Works[i]
		name := w.Title
		for j := range r.Peers {
			p := &r.Peers[j]
			if p.Nodes != nodes {
				continue
			}
			if row := r.row(p, w); row != "" {
				fmt.Fprintf(b, "| %s | %s | %s |\n", name, p.Name, row)
				name = ""
			}
		}
	}
	b.WriteString("\n")
}

// row is empty if the peer was not asked to do the work.
func (r *report) row(p *peer, w *work) string {
	got := r.of(p.Name, w.Name)
	if len(got) == 0 {
		for _, d := range r.Runs {
			if d.Peer == p.Name && d.Work == w.Name {
				return "failed: " + cell(d.Error) + " | | | "
			}
		}
		return ""
	}
	speed := count(spanOf(values(got, rate)).median)
	delay := ""
	if low, high := spanOf(values(got, p50)).median, spanOf(values(got, p99)).median; high > 0 {
		delay = latency(low) + " / " + latency(high)
	}
	cpu := fmt.Sprintf("%s, %s", digits(spanOf(values(got, func(d *done) float64 { return d.ServerCPU })).median),
		digits(spanOf(values(got, func(d *done) float64 { return d.ClientCPU })).median))
	return fmt.Sprintf("%s | %s | %s | %s", speed, delay, cpu, r.ratio(p, w))
}

// ratio is empty for the base itself.
func (r *report) ratio(p *peer, w *work) string {
	if p.ours() {
		return ""
	}
	if w.Paced {
		median := func(number func(*done) float64) string { return digits(spanOf(r.ratios(p, w, number)).median) }
		return "p50 " + median(p50) + ", p99 " + median(p99)
	}
	s := spanOf(r.ratios(p, w, rate))
	if s == (span{}) {
		return ""
	}
	return fmt.Sprintf("**%s** (%s to %s)", digits(s.median), digits(s.low), digits(s.high))
}

// cell is text that fits into a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "/")
}

// digits writes a number with two or three significant digits.
func digits(v float64) string {
	switch {
	case v == 0 || math.IsNaN(v) || math.IsInf(v, 0):
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v < 0.01:
		return fmt.Sprintf("%.1g", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// count writes a number of messages: 950, 41.2k, 1.25 M.
func count(v float64) string {
	switch {
	case v >= 999_500:
		return digits(v/1e6) + " M"
	case v >= 1000:
		return digits(v/1e3) + "k"
	}
	return fmt.Sprintf("%.0f", v)
}

// latency writes microseconds with a unit that fits.
func latency(us float64) string {
	switch {
	case us >= 999_500:
		return digits(us/1e6) + " s"
	case us >= 1000:
		return digits(us/1e3) + " ms"
	}
	return fmt.Sprintf("%.0f µs", us)
}

// interval writes a median, and between which values it lies.
func interval(s span, form func(float64) string) string {
	if form(s.low) == form(s.high) {
		return form(s.median)
	}
	return fmt.Sprintf("%s (%s to %s)", form(s.median), form(s.low), form(s.high))
}
