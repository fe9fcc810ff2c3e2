package nsq

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func testOptions(t *testing.T) *Options {
	t.Helper()
	set := new(Settings)
	if err := set.SetDefaults(); err != nil {
		t.Fatal(err)
	}
	o := &Options{Settings: new(atomic.Pointer[Settings]), Version: "1.3.0+engine.test"}
	o.Settings.Store(set)
	return o
}

func TestIdentifyFaults(t *testing.T) {
	o := testOptions(t)
	for _, x := range []struct{ body, want string }{
		{`nope`, "E_BAD_BODY IDENTIFY failed to decode JSON body"},
		{`{"heartbeat_interval":"x"}`, "E_BAD_BODY IDENTIFY failed to decode JSON body"},
		{`{"heartbeat_interval":100}`, "E_BAD_BODY IDENTIFY heartbeat interval (100) is invalid"},
		{`{"heartbeat_interval":-2}`, "E_BAD_BODY IDENTIFY heartbeat interval (-2) is invalid"},
		{`{"heartbeat_interval":60001}`, "E_BAD_BODY IDENTIFY heartbeat interval (60001) is invalid"},
		{`{"output_buffer_size":63}`, "E_BAD_BODY IDENTIFY output buffer size (63) is invalid"},
		{`{"output_buffer_size":65537}`, "E_BAD_BODY IDENTIFY output buffer size (65537) is invalid"},
		{`{"output_buffer_timeout":24}`, "E_BAD_BODY IDENTIFY output buffer timeout (24) is invalid"},
		{`{"output_buffer_timeout":30001}`, "E_BAD_BODY IDENTIFY output buffer timeout (30001) is invalid"},
		{`{"sample_rate":100}`, "E_BAD_BODY IDENTIFY sample rate (100) is invalid"},
		{`{"sample_rate":-1}`, "E_BAD_BODY IDENTIFY sample rate (-1) is invalid"},
		{`{"msg_timeout":999}`, "E_BAD_BODY IDENTIFY msg timeout (999) is invalid"},
		{`{"msg_timeout":900001}`, "E_BAD_BODY IDENTIFY msg timeout (900001) is invalid"},
		{
			`{"feature_negotiation":true,"deflate":true,"snappy":true}`,
			"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
		},
	} {
		old := o.Settings.Load().defaultSettings("h")
		got, _, f := o.identify([]byte(x.body), old)
		if f == nil || f.Text != x.want {
			t.Errorf("%s: got %v, want %s", x.body, f, x.want)
		}
		if got != old {
			t.Errorf("%s: refused, but the settings changed", x.body)
		}
	}
}

func TestIdentifySettings(t *testing.T) {
	o := testOptions(t)
	def := o.Settings.Load().defaultSettings("10.0.0.1")
	with := func(f func(*agreed)) agreed { s := def; f(&s); return s }
	for _, x := range []struct {
		body string
		want agreed
	}{
		{`{}`, def},
		{`{"short_id":"a","long_id":1,"topology_zone":{"x":[1]}}`, def},
		{`{"heartbeat_interval":-1}`, with(func(s *agreed) { s.heartbeat = 0 })},
		{`{"heartbeat_interval":1000}`, with(func(s *agreed) { s.heartbeat = time.Second })},
		{`{"heartbeat_interval":60000}`, with(func(s *agreed) { s.heartbeat = time.Minute })},
		{`{"output_buffer_size":-1}`, with(func(s *agreed) { s.outputBuffer, s.outputTimeout = 0, 0 })},
		{
			`{"output_buffer_size":64,"output_buffer_timeout":-1}`,
			with(func(s *agreed) { s.outputBuffer, s.outputTimeout = 64, 0 }),
		},
		{`{"output_buffer_timeout":25}`, with(func(s *agreed) { s.outputTimeout = 25 * time.Millisecond })},
		{
			`{"sample_rate":99,"msg_timeout":900000}`,
			with(func(s *agreed) { s.sampleRate, s.msgTimeout = 99, 15*time.Minute }),
		},
		{
			`{"client_id":"c","hostname":"h","user_agent":"u"}`,
			with(func(s *agreed) { s.clientID, s.hostname, s.userAgent = "c", "h", "u" }),
		},
		{
			`{"user_agent":"` + strings.Repeat("u", 5000) + `"}`,
			with(func(s *agreed) { s.userAgent = strings.Repeat("u", maxClientTextBytes) }),
		},
		{ // no half character is shown
			`{"user_agent":"u` + strings.Repeat("ü", 5000) + `"}`,
			with(func(s *agreed) { s.userAgent = "u" + strings.Repeat("ü", (maxClientTextBytes-1)/2) }),
		},
	} {
		got, reply, f := o.identify([]byte(x.body), def)
		if f != nil || got != x.want || string(reply) != "OK" {
			t.Errorf("%.80s: got %+v, %q, %v; want %+v, OK", x.body, got, reply, f, x.want)
		}
	}
}

func TestIdentifyNegotiation(t *testing.T) {
	o := testOptions(t)
	body := `{"feature_negotiation":true,"tls_v1":true,"snappy":true,"deflate_level":3,"msg_timeout":5000,` +
		`"sample_rate":7,"output_buffer_size":4096,"output_buffer_timeout":100}`
	_, reply, f := o.identify([]byte(body), o.Settings.Load().defaultSettings("h"))
	if f != nil {
		t.Fatal(f.Text)
	}
	var got map[string]any
	if err := json.Unmarshal(reply, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"max_rdy_count": 2500.0, "version": "1.3.0+engine.test", "max_msg_timeout": 900000.0, "msg_timeout": 5000.0,
		"tls_v1": false, "deflate": false, "deflate_level": 6.0, "max_deflate_level": 6.0, "snappy": true,
		"sample_rate": 7.0, "auth_required": false, "output_buffer_size": 4096.0, "output_buffer_timeout": 100.0,
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %v, want %v", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("fields %v", got)
	}
}
