//! Which pictures are drawn, and the blocks in which evaluators share them.

use std::ops::Range;

use super::prompts::Prompt;

/// A picture to draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlannedPicture {
    /// Position among all pictures of a step.
    pub index: usize,
    /// Position of the prompt.
    pub prompt: usize,
    /// Which of the prompt's images it is.
    pub image: usize,
    /// Number of the initial noise: it depends on prompt and image alone, so that pictures of
    /// different guidance scales can be compared.
    pub noise: u64,
    /// Guidance scale.
    pub guidance: f64,
}

/// All pictures of a step: for each guidance scale, each prompt, each image.
#[derive(Debug)]
pub struct Plan {
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Images per prompt.
    pub images: usize,
    /// Guidance scales.
    pub guidance: Vec<f64>,
    /// The most pictures of a block.
    pub block: usize,
}

impl Plan {
    /// The pictures of one guidance scale.
    pub fn pictures_per_guidance(&self) -> usize {
        self.prompts.len() * self.images
    }

    /// The number of pictures.
    pub fn num_pictures(&self) -> usize {
        self.pictures_per_guidance() * self.guidance.len()
    }

    /// The number of blocks. A block has pictures of one guidance scale only.
    pub fn num_blocks(&self) -> usize {
        self.blocks_per_guidance() * self.guidance.len()
    }

    fn blocks_per_guidance(&self) -> usize {
        self.pictures_per_guidance().div_ceil(self.block)
    }

    /// The pictures of a block.
    pub fn block(&self, number: usize) -> Vec<PlannedPicture> {
        let (scale, within) = (number / self.blocks_per_guidance(), number % self.blocks_per_guidance());
        let end = ((within + 1) * self.block).min(self.pictures_per_guidance());
        let range: Range<usize> = within * self.block..end;
        range.map(|position| self.picture(scale, position)).collect()
    }

    fn picture(&self, scale: usize, position: usize) -> PlannedPicture {
        PlannedPicture {
            index: scale * self.pictures_per_guidance() + position,
            prompt: position / self.images,
            image: position % self.images,
            noise: noise_number(position / self.images, position % self.images),
            guidance: self.guidance[scale],
        }
    }
}

/// The number of the noise of a prompt's image, whatever the number of images per prompt is.
fn noise_number(prompt: usize, image: usize) -> u64 {
    ((prompt as u64) << 32) | image as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_picture_is_in_one_block(
            prompts in 1usize..40, images in 1usize..5, scales in 1usize..4, block in 1usize..50,
        ) {
            let prompt = |i: usize| Prompt { text: i.to_string(), category: None, scene: None };
            let guidance = (0..scales).map(|i| i as f64).collect();
            let plan = Plan { prompts: (0..prompts).map(prompt).collect(), images, guidance, block };
            let blocks: Vec<_> = (0..plan.num_blocks()).map(|number| plan.block(number)).collect();
            for pictures in &blocks {
                prop_assert!(!pictures.is_empty() && pictures.len() <= block);
                prop_assert!(pictures.iter().all(|picture| picture.guidance == pictures[0].guidance));
            }
            let all: Vec<PlannedPicture> = blocks.concat();
            prop_assert_eq!(all.len(), plan.num_pictures());
            for (index, picture) in all.iter().enumerate() {
                prop_assert_eq!(picture.index, index);
                prop_assert_eq!(picture.noise, ((picture.prompt as u64) << 32) + picture.image as u64);
            }
        }
    }
}
