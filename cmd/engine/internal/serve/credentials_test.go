package serve

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/trust"
	"penstock/internal/server"
	"penstock/internal/server/auth"
)

// Files that change are read once; a half or broken set is said once, and tried again until it can be used; another set
// is taken meanwhile. A mounted secret is a link that somebody turns.
func TestCredentialsAreLookedAt(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	turn := func(to string) {
		t.Helper()
		_ = os.Remove(filepath.Join(dir, "next"))
		must(t, os.Symlink(to, filepath.Join(dir, "next")))
		must(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "now")))
	}
	write("one/cert", "1")
	write("one/key", "1")
	write("two/cert", "2")
	write("two/key", "2")
	turn("one")
	write("tokens", "a")
	var log bytes.Buffer
	reads, stale := 0, false
	var taken []string
	cert, key, tokens := filepath.Join(dir, "now", "cert"), filepath.Join(dir, "now", "key"), filepath.Join(dir, "tokens")
	c := &credentials{
		log: slog.New(slog.NewTextHandler(&log, nil)), stale: func(s bool) { stale = s }, now: time.Now,
		taken: func(settings []string) { taken = append(taken, settings...) },
		read: func(set credentialSet, _ []credentialFile) error {
			if set != setTLS {
				return nil
			}
			reads++
			a, errA := os.ReadFile(cert)
			b, errB := os.ReadFile(key)
			if !bytes.Equal(a, b) {
				return errors.New("nsq: the key is not the certificate's")
			}
			return errors.Join(errA, errB)
		},
	}
	n := new(settings.Options)
	n.NSQ.TLS.CertFile, n.NSQ.TLS.KeyFile, n.NSQ.Auth.File = cert, key, tokens
	c.watch(credentialFiles(n))
	nothing := func() {}
	for _, step := range []struct {
		name    string
		do      func()
		asked   bool
		reads   int // so far, of the pair
		stale   bool
		lines   int    // of the log, so far
		results string // of certificate, key and tokens
		taken   string
	}{
		{"nothing", nothing, false, 0, false, 0, "unchanged unchanged unchanged", ""},
		{"a new pair", func() { turn("two") }, false, 1, false, 1, "reloaded reloaded unchanged", "tls-cert tls-key"},
		{"nothing more", nothing, false, 1, false, 1, "unchanged unchanged unchanged", ""},
		{"half", func() { write("two/cert", "three") }, false, 2, true, 2, "refused unchanged unchanged", ""},
		{"still half", nothing, false, 3, true, 2, "refused unchanged unchanged", ""},
		{"another set", func() { write("tokens", "more") }, false, 4, true, 3, "refused unchanged reloaded", "auth-file"},
		{"none", func() { must(t, os.Remove(key)) }, false, 5, true, 4, "refused refused unchanged", ""},
		{"asked while it is half", nothing, true, 6, true, 6, "refused refused unchanged", ""},
		{
			"whole", func() { write("two/key", "three") }, false, 7, false, 7, "reloaded reloaded unchanged",
			"tls-cert tls-key",
		},
		{"whole, and nothing more", nothing, false, 7, false, 7, "unchanged unchanged unchanged", ""},
		{"asked", nothing, true, 8, false, 8, "unchanged unchanged unchanged", ""},
	} {
		step.do()
		taken = nil
		var results []string
		for _, f := range c.look("a test", step.asked) {
			results = append(results, f.Result)
			if (f.Error == "the key is not the certificate's") != (f.Result == "refused") {
				t.Errorf("%s: %+v", step.name, f)
			}
		}
		got := strings.Join(results, " ")
		if lines := strings.Count(log.String(), "\n"); reads != step.reads || stale != step.stale || lines != step.lines ||
			got != step.results || strings.Join(taken, " ") != step.taken {
			t.Fatalf("%s: read %d times, stale %v, %d lines, %s, taken %v; want %+v:\n%s",
				step.name, reads, stale, lines, got, taken, step, log.String())
		}
	}
}

// A setting that names a file of credentials names one that is watched: a new one that nobody watches fails here.
func TestEveryCredentialIsWatched(t *testing.T) {
	named := regexp.MustCompile(`(^|-)(cert|key|ca|secret|token|password|auth)(-http-address)?(-file)?$`)
	noFile := []string{"auth-http-address", "etcd-password"} // the value itself, not a file
	n := new(settings.Options)
	want := map[string]string{}
	for _, s := range settings.Table(n) {
		if !slices.Contains(noFile, s.Name) && (named.MatchString(s.Name) || strings.HasSuffix(s.Name, "-file")) {
			want[s.Name] = "/" + s.Name
			must(t, s.Value.Set(want[s.Name]))
		}
	}
	if len(want) < 13 {
		t.Errorf("only %v are settings of files", want)
	}
	for _, f := range credentialFiles(n) {
		if want[f.setting] != f.name {
			t.Errorf("%s is watched as %q", f.name, f.setting)
		}
		delete(want, f.setting)
		func() {
			defer func() {
				if p := recover(); p != nil && strings.Contains(fmt.Sprint(p), "BUG: nobody reads") {
					t.Error(p)
				}
			}()
			_ = readCredentials(n, f.set, nil, nil, nil)
		}()
		hasEnd := strings.HasSuffix(strings.TrimSuffix(f.setting, "-file"), "-cert") ||
			strings.HasSuffix(strings.TrimSuffix(f.setting, "-file"), "-ca")
		if hasEnd != (f.holds != holdsSecret) {
			t.Errorf("%s: whether it has certificates that end is %v", f.setting, f.holds)
		}
	}
	for name := range want {
		t.Errorf("nobody watches the file of %s", name)
	}
}

// Nor is a file of secrets taken when it changes, if everybody on the machine may read or change it.
func TestChangedSecretsArePrivate(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(strings.Repeat("s3cret-", 8)), 0o600))
	all := credentialFiles(&settings.Options{
		NSQ:    server.Options{TLS: server.TLSOptions{KeyFile: secret}, Auth: auth.Options{File: secret}},
		Offers: settings.Offers{AuthFile: secret},
		Cluster: settings.Cluster{
			Trust: trust.Options{SecretFile: secret, Key: secret}, EtcdTLS: etcd.TLSFiles{Key: secret},
			EtcdPasswordFile: secret,
		},
	})
	if len(all) != 7 {
		t.Errorf("these are all files of secrets: %v", all)
	}
	for _, f := range all {
		for mode, want := range map[os.FileMode]string{
			0o644: "or set readable-secrets", 0o602: "may be changed by everybody", 0o601: "or set readable-secrets",
		} {
			must(t, os.Chmod(secret, mode))
			if err := readCredentials(new(settings.Options), f.set, []credentialFile{f}, nil, nil); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s of mode %o is read again: %v", f.setting, mode, err)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
