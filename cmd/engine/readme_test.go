package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// readmeSection is the part of README.md that tells how to begin.
var readmeSection = regexp.MustCompile(`(?s)\n## Using it\n(.*?)\n## A cluster\n`)

// readmeBlock is a block of code, with its language.
var readmeBlock = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```")

// Every block of commands and every program in README's part on how to begin does what it says, on a node of its own.
func TestReadmeRuns(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	must(t, err)
	section := readmeSection.FindSubmatch(text)
	if section == nil {
		t.Fatal("README.md has no section Using it before A cluster")
	}
	runners := map[string]func(*testing.T, string){
		"curl": runCurl, "nsq_tail": runTools, "go mod": runEmbedding, "program": runProgram,
	}
	blocks := readmeBlock.FindAllStringSubmatch(string(section[1]), -1)
	if len(blocks) < 5 {
		t.Errorf("README.md has only %d blocks", len(blocks))
	}
	for _, m := range blocks {
		kind, code := "program", m[2]
		if m[1] != "go" {
			words := strings.Fields(code)
			if kind = words[0]; kind == "go" {
				kind += " " + words[1]
			}
		}
		t.Run(kind, func(t *testing.T) {
			run := runners[kind]
			if run == nil {
				t.Fatalf("no test knows how to run this block:\n%s", code)
			}
			p := startNode(t, t.TempDir(), "--native-address", "127.0.0.1:0")
			run(t, strings.NewReplacer(
				"127.0.0.1:4150", p.nsq, "127.0.0.1:4151", p.http, "127.0.0.1:4250", p.native(),
			).Replace(code))
		})
	}
}

// shell runs commands, each of which must succeed, and returns what they print.
func shell(t *testing.T, dir, commands string, env ...string) string {
	t.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s\nprints\n%s", err, commands, out)
	}
	return string(out)
}

func runCurl(t *testing.T, code string) {
	out := shell(t, "", strings.ReplaceAll(code, "curl ", "curl -sS --fail --max-time 20 "))
	if !strings.Contains(out, "OK") || !strings.Contains(out, "[orders") || !strings.Contains(out, "[billing") {
		t.Errorf("it prints\n%s", out)
	}
}

// runTools runs NSQ's utilities where they are installed. make clients runs them everywhere.
func runTools(t *testing.T, code string) {
	for _, tool := range []string{"nsq_tail", "to_nsq"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	tail, feed, _ := strings.Cut(strings.TrimSpace(code), "\n")
	if out := shell(t, "", feed+"\ntimeout 20 "+tail+" --n=1"); !strings.Contains(out, "hello") {
		t.Errorf("it prints\n%s", out)
	}
}

// runEmbedding makes a program outside of the tree that embeds the engine, as README says, from the checkout beside it.
func runEmbedding(t *testing.T, code string) {
	root, err := filepath.Abs("../..")
	must(t, err)
	above := t.TempDir()
	must(t, os.Symlink(root, filepath.Join(above, "penstock")))
	dir := filepath.Join(above, "program")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nimport (\n\t\"fmt\"\n\n"+
		"\t\"penstock/engine\"\n)\n\nfunc main() { fmt.Println(engine.ValidTopicName(\"orders\")) }\n"), 0o600))
	out := shell(t, dir, "go mod init example.org/program\n"+code+"\ngo run .", "GOFLAGS=-mod=mod")
	if !strings.HasSuffix(strings.TrimSpace(out), "true") {
		t.Errorf("it prints\n%s", out)
	}
}

// programImports are the packages that programs in README use, by the name in front of the dot.
var programImports = map[string]string{
	"client": "penstock/client", "context": "context", "fmt": "fmt", "log": "log", "nsq": "github.com/nsqio/go-nsq",
}

// runProgram completes a program, and runs it until it has printed the message that it has published.
func runProgram(t *testing.T, code string) {
	var b bytes.Buffer
	b.WriteString("package main\n\nimport (\n")
	body := "\tctx := context.Background()\n\t_ = ctx\n" + code +
		"\tif err != nil {\n\t\tlog.Fatal(err)\n\t}\n\tselect {}\n"
	for name, path := range programImports {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(body) {
			b.WriteString("\t\"" + path + "\"\n")
		}
	}
	b.WriteString(")\n\nfunc main() {\n" + body + "}\n")
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	must(t, os.WriteFile(source, b.Bytes(), 0o600))
	shell(t, "", "go build -o "+program+" "+source)
	cmd := exec.Command(program)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = cmd.Stdout
	must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	var all strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		if strings.HasSuffix(lines.Text(), "hello") {
			return
		}
	}
	t.Errorf("it does not print its message, but\n%s", all.String())
}
