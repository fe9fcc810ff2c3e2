package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/web"
	"penstock/tests/support/nsqtest"
)

// Headers that never come to an end, or are too large, end their connection, on every HTTP listener, and so does a TLS
// handshake that never ends; others are served meanwhile.
func TestHeadersThatNeverEnd(t *testing.T) {
	t.Parallel()
	o := tlsOptions(t, nsqtest.NewAuthority(t))
	o.HTTPSAddress = "127.0.0.1:0"
	n := startNode(t, node.Options{}, o)
	var all sync.WaitGroup
	trickle := func(address, first, more string) {
		all.Go(func() {
			nc, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			defer nc.Close()
			start := time.Now()
			_, err = io.WriteString(nc, first)
			for err == nil {
				_, err = io.WriteString(nc, more)
				_ = nc.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // sets the pace of the trickle
				_, readErr := nc.Read(make([]byte, 1))
				if timeout, ok := readErr.(net.Error); !ok || !timeout.Timeout() {
					break
				}
				if time.Since(start) > 3*web.HeaderTimeout {
					t.Errorf("%s: the connection stays open", address)
					return
				}
			}
			if d := time.Since(start); d < web.HeaderTimeout/2 {
				t.Errorf("%s: closed after %v already", address, d)
			}
		})
	}
	trickle(n.HTTPSAddr().String(), "\x16\x03\x01\x20\x00", "\x01")
	for _, address := range []string{n.HTTPAddr().String(), n.LookupAddr().String()} {
		trickle(address, "GET /ping HTTP/1.1\r\nHost: localhost\r\n", "X: y\r\n")
		large, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+address+"/ping", nil)
		if err != nil {
			t.Fatal(err)
		}
		large.Header.Set("X-Large", strings.Repeat("x", 2*web.MaxHeaderBytes))
		if reply, err := http.DefaultClient.Do(large); err == nil { // an error: the node did not read all of it
			reply.Body.Close()
			if reply.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("%s: a large header is answered %d", address, reply.StatusCode)
			}
		}
		if reply, _ := request(t, "GET", "http://"+address+"/ping", ""); reply.StatusCode != 200 {
			t.Errorf("%s: /ping answers %d", address, reply.StatusCode)
		}
	}
	all.Wait()
}

// A cookie that somebody made up proves nothing.
func TestForgedCookies(t *testing.T) {
	n := startClosed(t, Options{})
	for _, cookie := range []string{"token=forged", "penstock=forged", "session=forged; Authorization=Bearer s3cret"} {
		for _, x := range []struct{ method, path string }{
			{"GET", "/audit"}, {"POST", "/pub?topic=t"}, {"POST", "/topic/create?topic=t"},
		} {
			if reply, body := request(t, x.method, n.base+x.path, "x", "Cookie", cookie); reply.StatusCode != 401 {
				t.Errorf("%s %s with the cookie %q: %d %s", x.method, x.path, cookie, reply.StatusCode, body)
			}
		}
	}
	if _, ok := n.e.Catalog().LookupTopic("t"); ok {
		t.Error("a topic was made")
	}
}

// Ten scrapers of /metrics at once get whole answers, and publishers go on meanwhile. On a machine that is so busy that
// a scraper gets no turn for long, it is told so, and asks again.
func TestTenScrapersAtOnce(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	for i := range 30 {
		n.post(t, fmt.Sprintf("/topic/create?topic=t%d", i), "")
		n.post(t, fmt.Sprintf("/channel/create?topic=t%d&channel=c", i), "")
	}
	stop := make(chan struct{})
	var publisher, scrapers sync.WaitGroup
	c := n.dial(t)
	published := 0
	publisher.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, err := io.WriteString(c.W, nsqtest.Pub("t0", "x"))
			if _, data, frameErr := c.Frame(nsqtest.Patience); err != nil || frameErr != nil || string(data) != "OK" {
				t.Errorf("a publish is answered %q, %v, %v", data, err, frameErr)
				return
			}
			published++
		}
	})
	scrape := func() (status int) {
		reply, err := http.Get(n.base + "/metrics")
		if err != nil {
			t.Error(err)
			return 0
		}
		defer reply.Body.Close()
		found := 0
		for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "penstock_channel_depth{") {
				found++
			}
		}
		if late := reply.StatusCode == 503 && found == 0; !late && (reply.StatusCode != 200 || found != 30) {
			t.Errorf("%d with %d channels", reply.StatusCode, found)
		}
		return reply.StatusCode
	}
	for range 10 {
		scrapers.Go(func() {
			until := time.Now().Add(nsqtest.Patience)
			for whole := 0; whole < 5 && !t.Failed(); {
				if scrape() == 200 {
					whole++
				} else if time.Now().After(until) {
					t.Errorf("a scraper got %d whole answers in %v", whole, nsqtest.Patience)
				}
			}
		})
	}
	scrapers.Wait()
	close(stop)
	publisher.Wait()
	if published == 0 {
		t.Error("nothing was published while /metrics was read")
	}
}
