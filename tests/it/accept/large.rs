//! Bodies in one piece of memory, of all sizes and in all pieces.

use super::*;
use ocelli::random::Random;

/// Answers with the body.
pub(super) async fn whole(request: Request) -> Result<Bytes, InferError> {
    body::of(request, limits(LARGE_BYTES as u64, LONG)).await
}

/// A request with a body of `bytes`, which differ from those of every other number.
fn request(number: usize, bytes: usize) -> Vec<u8> {
    let mut request =
        format!("POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
    request.extend(content(number, bytes));
    request
}

fn content(number: usize, bytes: usize) -> impl Iterator<Item = u8> {
    (0..bytes).map(move |at| ((at + number * 37) % 251) as u8 + (at >> 16) as u8 % 5)
}

/// Reads the answer to a request with such a body.
async fn check(stream: &mut (impl AsyncReadExt + Unpin), number: usize, bytes: usize) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "request {number} of {bytes} bytes: {head}");
    assert!(head.contains(&format!("content-length: {bytes}\r\n")), "{number}: {head}");
    let mut body = vec![0; bytes];
    soon(stream.read_exact(&mut body)).await.unwrap();
    let wrong = body.iter().copied().zip(content(number, bytes)).position(|(got, sent)| got != sent);
    assert_eq!(wrong, None, "request {number} of {bytes} bytes");
}

#[tokio::test]
async fn bodies_of_all_sizes_come_as_they_were_sent_however_they_are_cut_and_follow_each_other() {
    const KIB: usize = 1024;
    let seed = 20_261_130;
    println!("seed {seed}");
    let server = start(settings()).await;
    let connections = (0..3).map(|connection| {
        let mut random = Random::new(seed + connection);
        let mut sizes: Vec<usize> = (0..16)
            .map(|_| {
                let about = [0, 3, 15 * KIB, 16 * KIB, 250 * KIB, 256 * KIB, 600 * KIB, 3000 * KIB];
                about[random.below(about.len())] + random.below(16 * KIB)
            })
            .collect();
        // More than is made room for at once.
        sizes.insert(random.below(16), 17_000 * KIB + random.below(KIB));
        let address = server.address;
        async move {
            let sent: Vec<u8> =
                sizes.iter().enumerate().flat_map(|(number, bytes)| request(number, *bytes)).collect();
            let stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (read, mut write) = stream.into_split();
            let writing = async {
                let mut rest = &sent[..];
                while !rest.is_empty() {
                    // Mostly what a socket takes, now and then a few bytes.
                    let most = [1 << 20, 1 << 20, 200 * KIB, 40][random.below(4)];
                    let (piece, behind) = rest.split_at(rest.len().min(1 + random.below(most)));
                    write.write_all(piece).await.unwrap();
                    if random.below(2) == 0 {
                        tokio::task::yield_now().await;
                    }
                    rest = behind;
                }
            };
            let reading = async {
                let mut read = tokio::io::BufReader::new(read);
                for (number, bytes) in sizes.iter().enumerate() {
                    check(&mut read, number, *bytes).await;
                }
            };
            tokio::join!(writing, reading);
        }
    });
    futures_util::future::join_all(connections).await;
}
