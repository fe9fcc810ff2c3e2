package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

const (
	plotWidth = 7 * vg.Inch
	barWidth  = 13 // points
	barGap    = 9
	plotFrame = 90 // points for what is not bars
)

var (
	ours   = color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}
	theirs = color.RGBA{R: 0xb0, G: 0xb6, B: 0xbd, A: 0xff}
)

// plots writes a picture of each work of each number of nodes into a directory.
func (r *report) plots(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range r.Works {
		for _, nodes := range []int{1, 3} {
			if err := r.plot(dir, &r.Works[i], nodes); err != nil {
				return err
			}
		}
	}
	return nil
}

// plotName is the file of a picture.
func plotName(w *work, nodes int) string { return fmt.Sprintf("%s-%d.svg", w.Name, nodes) }

// bars are the peers of a picture with their values, the first one on top.
func (r *report) bars(w *work, nodes int) (peers []*peer, medians []float64) {
	for i := range r.Peers {
		p := &r.Peers[i]
		got := r.of(p.Name, w.Name)
		if p.Nodes != nodes || len(got) == 0 {
			continue
		}
		number := rate
		if w.Paced {
			number = p99
		}
		peers = append(peers, p)
		medians = append(medians, spanOf(values(got, number)).median)
	}
	return peers, medians
}

// plot draws horizontal bars on a logarithmic axis, as the servers differ by orders of magnitude.
func (r *report) plot(dir string, w *work, nodes int) error {
	peers, medians := r.bars(w, nodes)
	if len(peers) == 0 {
		return nil
	}
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	p := plot.New()
	p.Title.Text = w.Title + ", " + title(nodes)
	form := count
	p.X.Label.Text = "messages a second, median, logarithmic; more is better"
	if w.Paced {
		form = latency
		p.X.Label.Text = "p99 from publish call to handler, median, logarithmic; less is better"
	}
	low, high := decades(medians)
	p.X.Min, p.X.Max = low, high
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.ConstantTicks(ticks(low, high, form))
	labels := plotter.XYLabels{}
	names := make([]plot.Tick, 0, len(peers))
	for i, one := range peers {
		y, fill := float64(len(peers)-1-i), theirs
		if one.ours() {
			fill = ours
		}
		bar, err := plotter.NewPolygon(plotter.XYs{
			{X: low, Y: y - .3}, {X: medians[i], Y: y - .3}, {X: medians[i], Y: y + .3}, {X: low, Y: y + .3},
		})
		if err != nil {
			return err
		}
		bar.Color, bar.LineStyle.Width = fill, 0
		p.Add(bar)
		names = append(names, plot.Tick{Value: y, Label: one.Name})
		labels.XYs = append(labels.XYs, plotter.XY{X: medians[i], Y: y - .15})
		labels.Labels = append(labels.Labels, " "+form(medians[i]))
	}
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	p.Add(text)
	p.Y.Tick.Marker = plot.ConstantTicks(names)
	p.Y.Tick.LineStyle.Width = 0
	p.Y.Min, p.Y.Max = -.6, float64(len(peers))-.4
	height := vg.Points(float64(plotFrame + len(peers)*(barWidth+barGap)))
	return p.Save(plotWidth, height, filepath.Join(dir, plotName(w, nodes)))
}

// ours says whether ratios are taken to a peer.
func (p *peer) ours() bool { return p.Name == p.Base }

// decades are the powers of ten around the values, with room for a label behind the longest bar.
func decades(values []float64) (low, high float64) {
	low, high = math.Inf(1), 0
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return math.Pow(10, math.Floor(math.Log10(low*.7))), 4 * high
}

// ticks are one tick for each power of ten.
func ticks(low, high float64, form func(float64) string) []plot.Tick {
	var all []plot.Tick
	for v := low; v <= high; v *= 10 {
		all = append(all, plot.Tick{Value: v, Label: form(v)})
	}
	return all
}
