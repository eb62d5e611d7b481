// River: prepare, fill, drain and enqueue, as the contenders in Python.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const batch = 10_000

type nothing struct {
	Number int `json:"number"`
}

func (nothing) Kind() string { return "nothing" }

type worker struct {
	river.WorkerDefaults[nothing]
	lap func()
}

func (w *worker) Work(context.Context, *river.Job[nothing]) error {
	w.lap()
	return nil
}

// stopwatch times a run from the first call of the task to the last. With BENCHMARK_TALLY it counts in a file of that
// folder instead, for a runner that adds several processes up, and stops at SIGTERM.
type stopwatch struct {
	mutex       sync.Mutex
	count, laps int
	first       time.Time
	tally       *os.File
	stopped     chan os.Signal
}

func newStopwatch() *stopwatch {
	watch := &stopwatch{stopped: make(chan os.Signal, 1)}
	watch.laps, _ = strconv.Atoi(os.Getenv("BENCHMARK_LAPS"))
	if directory := os.Getenv("BENCHMARK_TALLY"); directory != "" {
		var err error
		watch.tally, err = os.Create(fmt.Sprintf("%s/%d", directory, os.Getpid()))
		check(err)
		signal.Notify(watch.stopped, syscall.SIGTERM)
	}
	return watch
}

func (w *stopwatch) lap() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := time.Now()
	w.count++
	if w.count == 1 {
		w.first = now
	}
	if w.tally != nil {
		w.write(now)
	} else if w.count == w.laps {
		seconds := strconv.FormatFloat(now.Sub(w.first).Seconds(), 'f', -1, 64)
		check(os.WriteFile(os.Getenv("BENCHMARK_RESULT"), []byte(seconds), 0o600))
		w.stopped <- syscall.SIGTERM
	}
}

// write records the count and the times of the first and the last call, in nanoseconds.
func (w *stopwatch) write(now time.Time) {
	var record []byte
	for _, number := range []int64{int64(w.count), w.first.UnixNano(), now.UnixNano()} {
		record = binary.LittleEndian.AppendUint64(record, uint64(number))
	}
	_, err := w.tally.WriteAt(record, 0)
	check(err)
}

func prepare(ctx context.Context, pool *pgxpool.Pool) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
}

func inserting(pool *pgxpool.Pool) *river.Client[pgx.Tx] {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	check(err)
	return client
}

func fill(ctx context.Context, client *river.Client[pgx.Tx], count int) {
	for first := 0; first < count; first += batch {
		var jobs []river.InsertManyParams
		for number := first; number < min(first+batch, count); number++ {
			jobs = append(jobs, river.InsertManyParams{Args: nothing{number}})
		}
		_, err := client.InsertManyFast(ctx, jobs)
		check(err)
	}
}

func enqueue(ctx context.Context, client *river.Client[pgx.Tx], count int) {
	for number := range count {
		_, err := client.Insert(ctx, nothing{number}, nil)
		check(err)
	}
}

func drain(ctx context.Context, pool *pgxpool.Pool) {
	watch := newStopwatch()
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{lap: watch.lap})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2_000}},
		Workers:           workers,
	})
	check(err)
	check(client.Start(ctx))
	<-watch.stopped
	check(client.Stop(ctx))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "")
	check(err)
	defer pool.Close()
	verb, count := os.Args[1], 0
	if len(os.Args) > 2 {
		count, err = strconv.Atoi(os.Args[2])
		check(err)
	}
	client := inserting(pool)
	if os.Getenv("BENCHMARK_WARM") != "" { // keeps the connection out of the measurement
		enqueue(ctx, client, 1)
	}
	began := time.Now()
	switch verb {
	case "prepare":
		prepare(ctx, pool)
	case "fill":
		fill(ctx, client, count)
	case "drain":
		drain(ctx, pool)
	case "enqueue":
		enqueue(ctx, client, count)
	default:
		check(fmt.Errorf("no verb %q", verb))
	}
	fmt.Println(time.Since(began).Seconds())
}
