package main

import (
	"bufio"
	"bytes"
	"fmt"
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

// Every program in README's part on how to begin does what it says, on a node of its own. tests/docs runs the commands.
func TestReadmeRuns(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	must(t, err)
	section := readmeSection.FindSubmatch(text)
	if section == nil {
		t.Fatal("README.md has no section Using it before A cluster")
	}
	ran := 0
	for _, m := range readmeBlock.FindAllStringSubmatch(string(section[1]), -1) {
		if m[1] != "go" {
			continue
		}
		ran++
		t.Run(fmt.Sprint(ran), func(t *testing.T) {
			p := startNode(t, t.TempDir(), "--native-address", "127.0.0.1:0")
			runProgram(t, strings.NewReplacer("127.0.0.1:4150", p.nsq, "127.0.0.1:4250", p.native()).Replace(m[2]))
		})
	}
	if ran < 3 {
		t.Errorf("README.md has only %d programs", ran)
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

// programImports are the packages that programs in README use, by the name in front of the dot.
var programImports = map[string]string{
	"client": "penstock/client", "context": "context", "engine": "penstock/engine", "fmt": "fmt", "log": "log",
	"nsq": "github.com/nsqio/go-nsq",
}

// runProgram completes a program, with the function check that programs in README call, and runs it in a directory of
// its own until it has printed the message that it has published.
func runProgram(t *testing.T, code string) {
	var b bytes.Buffer
	b.WriteString("package main\n\nimport (\n")
	body := "\tctx := context.Background()\n\t_ = ctx\n" + code + "\tcheck(err)\n\tselect {}\n}\n\n" +
		"func check(err error) {\n\tif err != nil {\n\t\tlog.Fatal(err)\n\t}\n"
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
	cmd.Dir = dir
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
