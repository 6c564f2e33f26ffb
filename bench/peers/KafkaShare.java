/*
 * Kafka's share groups (KIP-932, early access in 4.0) under load: records that are handed out to several consumers
 * and acknowledged one by one, which is what a shared subscription does.
 *
 * Run by `bench.subscriptions.kafka` as `java -cp 'jars/*' KafkaShare.java host:port`. Jobs and answers are lines, as
 * in KafkaLoad.java.
 *
 *   share TOPIC GROUP CONSUMERS RECORDS                 ok SECONDS
 *   deliver TOPIC GROUP RATE SECONDS SIZE               ok P50_MS P99_MS P999_MS MAX_MS
 *
 * A share group acknowledges what `poll` gave at the next `poll`, all of it.
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class KafkaShare {
    private static final long PATIENCE_SECONDS = 120;

    private final String bootstrap;

    private KafkaShare(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        var load = new KafkaShare(arguments[0]);
        var jobs = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            String answer;
            try {
                answer = "ok " + load.run(line.split(" "));
            } catch (Exception error) {
                answer = "error " + error;
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
        }
    }

    private String run(String[] job) throws Exception {
        switch (job[0]) {
            case "share":
                return share(job[1], job[2], Integer.parseInt(job[3]), Long.parseLong(job[4]));
            case "deliver":
                return deliver(
                    job[1], job[2], Integer.parseInt(job[3]), Integer.parseInt(job[4]), Integer.parseInt(job[5]));
            default:
                throw new IllegalArgumentException("no job: " + job[0]);
        }
    }

    private Properties settings() {
        var settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private KafkaShareConsumer<byte[], byte[]> consumer(String group) {
        Properties settings = settings();
        settings.put("group.id", group);
        return new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** A share group begins at the latest record unless its configuration says otherwise. */
    private void beginAtTheFirst(String group) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        var entry = new ConfigEntry("share.auto.offset.reset", "earliest");
        try (Admin admin = Admin.create(settings())) {
            admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET))))
                .all()
                .get();
        }
    }

    private String share(String topic, String group, int consumers, long records) throws Exception {
        beginAtTheFirst(group);
        var left = new AtomicLong(records);
        var first = new AtomicLong();
        var last = new AtomicLong();
        var done = new CountDownLatch(1);
        var failure = new AtomicReference<Exception>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < consumers; number++) {
            threads.add(new Thread(() -> {
                try (var consumer = consumer(group)) {
                    consumer.subscribe(List.of(topic));
                    while (done.getCount() > 0) {
                        int count = consumer.poll(Duration.ofMillis(200)).count();
                        if (count > 0) {
                            first.compareAndSet(0, System.nanoTime());
                            if (left.addAndGet(-count) <= 0) {
                                consumer.commitSync();
                                last.compareAndSet(0, System.nanoTime());
                                done.countDown();
                            }
                        }
                    }
                } catch (Exception error) {
                    failure.compareAndSet(null, error);
                    done.countDown();
                }
            }));
        }
        threads.forEach(Thread::start);
        boolean finished = done.await(PATIENCE_SECONDS, TimeUnit.SECONDS);
        done.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        if (!finished) {
            throw new IllegalStateException(left.get() + " of " + records + " records did not come");
        }
        return String.valueOf((last.get() - first.get()) / 1e9);
    }

    private String deliver(String topic, String group, int rate, int seconds, int size) throws Exception {
        beginAtTheFirst(group);
        int count = rate * seconds;
        long[] took = new long[count];
        var failure = new AtomicReference<Exception>();
        var warm = new CountDownLatch(1);
        var taking = new Thread(() -> {
            long until = System.nanoTime() + (seconds + PATIENCE_SECONDS) * 1_000_000_000L;
            try (var consumer = consumer(group)) {
                consumer.subscribe(List.of(topic));
                int got = 0;
                while (got < count && System.nanoTime() < until) {
                    var records = consumer.poll(Duration.ofMillis(200));
                    long now = System.nanoTime();
                    for (var record : records) {
                        long sentAt = ByteBuffer.wrap(record.value()).getLong();
                        if (sentAt == 0) {
                            warm.countDown();
                        } else if (got < count) {
                            took[got++] = now - sentAt;
                        }
                    }
                }
                if (got < count) {
                    failure.set(new IllegalStateException(got + " of " + count + " records came"));
                }
            } catch (Exception error) {
                failure.compareAndSet(null, error);
            }
        });
        taking.start();
        Properties settings = settings();
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(topic);
            for (int tries = 0; tries < 600; tries++) { // until the group has its member, and something came
                producer.send(new ProducerRecord<>(topic, new byte[size]));
                if (warm.await(100, TimeUnit.MILLISECONDS)) {
                    break;
                }
            }
            Thread.sleep(1_000);
            long began = System.nanoTime();
            for (int sent = 0; sent < count; ) {
                long due = Math.min(count, (System.nanoTime() - began) * rate / 1_000_000_000L);
                for (; sent < due; sent++) {
                    byte[] value = new byte[size];
                    ByteBuffer.wrap(value).putLong(System.nanoTime());
                    producer.send(new ProducerRecord<>(topic, value));
                }
                Thread.sleep(0, 500_000);
            }
        }
        taking.join();
        if (failure.get() != null) {
            throw failure.get();
        }
        Arrays.sort(took);
        var line = new StringBuilder();
        for (double part : new double[] {0.5, 0.99, 0.999, 1.0}) {
            line.append(took[(int) Math.min(took.length - 1, took.length * part)] / 1e6).append(' ');
        }
        return line.toString().trim();
    }
}
