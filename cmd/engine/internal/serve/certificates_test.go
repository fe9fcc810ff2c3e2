package serve

import (
	"bytes"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/tests/support/clitest"
)

const day = 24 * time.Hour

// A file is as good as its worst certificate, if it is a chain; of authorities the next one to end counts, and those
// that have ended do not while one is good.
func TestCertificateFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		authorities bool
		until       []time.Duration
		want        time.Duration
	}{
		"one":                        {false, []time.Duration{9 * day}, 9 * day},
		"a chain":                    {false, []time.Duration{9 * day, 3 * day, 20 * day}, 3 * day},
		"authorities":                {true, []time.Duration{9 * day, 3 * day, 20 * day}, 3 * day},
		"an authority that has gone": {true, []time.Duration{-day, 9 * day, 20 * day, -2 * day}, 9 * day},
	} {
		dir := t.TempDir()
		var all bytes.Buffer
		for _, until := range tc.until {
			cert, _ := clitest.WriteCertificate(t, dir, "x", -10*day, until)
			data, err := os.ReadFile(cert)
			must(t, err)
			all.Write(data)
		}
		must(t, pem.Encode(&all, &pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))
		file := filepath.Join(dir, "all.pem")
		must(t, os.WriteFile(file, all.Bytes(), 0o600))
		c := &certificates{files: []certificateFile{
			{"x", file, tc.authorities}, {"missing", file + "-not", false},
		}}
		c.read()
		got := c.all()
		if len(got) != 1 || got[0].Setting != "x" || time.Until(got[0].Until).Round(time.Hour) != tc.want {
			t.Errorf("%s: %+v, want one that ends in %v", name, got, tc.want)
		}
	}
}

// Of a file that the node has not taken, what it had counts, whatever is on the disk.
func TestCertificatesOfRefusedFiles(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	a, _ := clitest.WriteCertificate(t, one, "x", -day, 9*day)
	b, _ := clitest.WriteCertificate(t, two, "x", -day, 9*day)
	c := &certificates{files: []certificateFile{{"tls-cert", a, false}, {"etcd-cert-file", b, false}}}
	c.read()
	clitest.WriteCertificate(t, one, "x", -day, 20*day)
	clitest.WriteCertificate(t, two, "x", -day, 20*day)
	for _, step := range []struct {
		taken []string
		want  [2]time.Duration
	}{
		{nil, [2]time.Duration{9 * day, 9 * day}},
		{[]string{"etcd-cert-file"}, [2]time.Duration{9 * day, 20 * day}},
		{[]string{"tls-cert", "tls-key"}, [2]time.Duration{20 * day, 20 * day}},
	} {
		c.readAgain(step.taken)
		for i, one := range c.all() {
			if got := time.Until(one.Until).Round(time.Hour); got != step.want[i] {
				t.Errorf("after %v, %s ends in %v, want %v", step.taken, one.Setting, got, step.want[i])
			}
		}
	}
}

// A certificate that ends soon is in the log when that begins and once a day; and when it has ended, and is replaced.
func TestCertificateIsToldOnceADay(t *testing.T) {
	dir := t.TempDir()
	cert, _ := clitest.WriteCertificate(t, dir, "x", -day, 40*day)
	var log bytes.Buffer
	c := &certificates{
		files: []certificateFile{{"tls-cert", cert, false}}, told: map[string]reminded{},
		log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	c.read()
	now := time.Now()
	for _, step := range []struct {
		after time.Duration
		lines int
	}{
		{0, 0},
		{9 * day, 0},
		{10*day + time.Minute, 1},
		{11*day - time.Minute, 1},
		{11*day + time.Minute, 2},
		{40*day - time.Hour, 3},
		{40*day + time.Hour, 4},
		{40*day + 2*time.Hour, 4},
		{41*day + 2*time.Hour, 5},
	} {
		for range 3 {
			c.tell(now.Add(step.after))
		}
		if got := strings.Count(log.String(), "\n"); got != step.lines {
			t.Fatalf("after %v there are %d lines, want %d:\n%s", step.after, got, step.lines, log.String())
		}
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 3 || strings.Count(text, "level=ERROR") != 2 {
		t.Errorf("the log:\n%s", text)
	}
}
